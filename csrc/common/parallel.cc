#include "common/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "common/check.h"

namespace tensoropt {

namespace {

// Runs items until none is left; remembers the first exception.
class Loop {
 public:
  Loop(int num_items, const std::function<void(int)>& body)
      : num_items_(num_items), body_(body) {}

  void run() {
    try {
      for (int item = next_++; item < num_items_; item = next_++) body_(item);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_ = num_items_;
    }
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const int num_items_;
  const std::function<void(int)>& body_;
  std::atomic<int> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

int resolve_num_threads(int requested) {
  TO_CHECK(requested >= 0,
           "num_threads must be 0 (all hardware threads) or positive, got {}",
           requested);
  if (requested > 0) return requested;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void parallel_for(int num_items, int num_threads,
                  const std::function<void(int)>& body) {
  Loop loop(num_items, body);
  const int extra = std::min(num_threads, num_items) - 1;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < extra; ++i) threads.emplace_back([&] { loop.run(); });
    loop.run();
  }
  loop.rethrow();
}

}  // namespace tensoropt
