// Counts the bytes that PyTorch's allocator for CPUs hands out, on all threads:
// results, what kernels need while they run, buffers of collectives.
//
//   tensoropt::count_allocations(true)   starts from 0; `false` ends it
//   tensoropt::reset_peak_allocated()    peaks start from what is allocated now
//   tensoropt::peak_allocated() -> int   bytes; sizes are as asked for
//
// Only memory that is allocated while counting is counted, freed or not. A
// profiler of PyTorch would see the threads that it was started on; those of
// Gloo free tensors as well.

#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <unordered_map>

namespace tensoropt {

namespace {

constexpr std::uint8_t kBeforeAllOthers =
    std::numeric_limits<std::uint8_t>::max();

// Bytes by address. Thread-safe.
class Allocations {
 public:
  void clear() {
    const std::lock_guard lock(mutex_);
    sizes_.clear();
    current_ = peak_ = 0;
  }

  void add(void* pointer, std::int64_t bytes) {
    if (pointer == nullptr) return;
    const std::lock_guard lock(mutex_);
    sizes_[pointer] = bytes;
    current_ += bytes;
    peak_ = std::max(peak_, current_);
  }

  void remove(void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(pointer);
    if (found == sizes_.end()) return;
    current_ -= found->second;
    sizes_.erase(found);
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = current_;
  }

  std::int64_t peak() {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, std::int64_t> sizes_;
  std::int64_t current_ = 0;
  std::int64_t peak_ = 0;
};

// Never destroyed: tensors may be freed when the process ends.
Allocations& allocations() {
  static auto& allocations = *new Allocations;
  return allocations;
}

// Counts what another allocator does.
class CountingAllocator final : public c10::Allocator {
 public:
  // The allocator in use when this is called for the first time.
  static CountingAllocator& instance() {
    static auto& instance = *new CountingAllocator(c10::GetCPUAllocator());
    return instance;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr data = inner_->allocate(bytes);
    const bool known =
        data.compare_exchange_deleter(inner_->raw_deleter(), &free_counted);
    TORCH_CHECK(known, "allocations of this CPU allocator cannot be counted");
    allocations().add(data.get(), static_cast<std::int64_t>(bytes));
    return data;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }

  // Other threads should not allocate meanwhile. Memory may be freed later, and
  // also by the allocator that it does not come from.
  void install(bool on) {
    c10::SetCPUAllocator(on ? this : inner_, kBeforeAllOthers);
  }

 private:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  static void free_counted(void* pointer) {
    allocations().remove(pointer);
    instance().inner_->raw_deleter()(pointer);
  }

  c10::Allocator* inner_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def("count_allocations(bool on) -> ()", [](bool on) {
    if (on) allocations().clear();
    CountingAllocator::instance().install(on);
  });
  library.def("reset_peak_allocated() -> ()",
              [] { allocations().reset_peak(); });
  library.def("peak_allocated() -> int", [] { return allocations().peak(); });
}

}  // namespace tensoropt
