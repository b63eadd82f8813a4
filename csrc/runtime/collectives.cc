#include "runtime/collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <numeric>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <utility>
#include <vector>

#include "runtime/autograd_calls.h"

namespace tensoropt {

namespace {

using Work = Started::Work;

// The single-tensor collectives were renamed in PyTorch 2.13; older releases
// have the names with an underscore only.
template <typename ProcessGroup>
Work call_all_gather(ProcessGroup& group, at::Tensor& out, at::Tensor& in) {
  if constexpr (requires { group.all_gather_single(out, in); }) {
    return group.all_gather_single(out, in);
  } else {
    return group._allgather_base(out, in);
  }
}

template <typename ProcessGroup>
Work call_reduce_scatter(ProcessGroup& group, at::Tensor& out, at::Tensor& in) {
  if constexpr (requires { group.reduce_scatter_single(out, in); }) {
    return group.reduce_scatter_single(out, in);
  } else {
    return group._reduce_scatter_base(out, in);
  }
}

template <typename ProcessGroup>
Work call_all_to_all(ProcessGroup& group, at::Tensor& out, at::Tensor& in,
                     std::vector<std::int64_t>& out_splits,
                     std::vector<std::int64_t>& in_splits) {
  if constexpr (requires {
                  group.all_to_all_single(out, in, out_splits, in_splits);
                }) {
    return group.all_to_all_single(out, in, out_splits, in_splits);
  } else {
    return group.alltoall_base(out, in, out_splits, in_splits);
  }
}

// Counts are for tests and reports; they do not influence results.
std::array<std::atomic<std::int64_t>, kNumCounters>& counters() {
  static std::array<std::atomic<std::int64_t>, kNumCounters> counters{};
  return counters;
}

std::atomic<bool>& timing_on() {
  static std::atomic<bool> on{false};
  return on;
}

std::atomic<std::int64_t>& network_ns() {
  static std::atomic<std::int64_t> ns{0};
  return ns;
}

bool& inside_timer() {
  thread_local bool inside = false;
  return inside;
}

void wait_for(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

// Parts along dim 0, without the dim that numbers them: another tensor with the
// same memory.
at::Tensor flat(const at::Tensor& parts) { return parts.contiguous().view(-1); }

// Takes memory away from a tensor that was lent. A thread of Gloo's holds it
// for some time after the end, and would keep the memory as long.
void end_loan(at::Tensor& lent) {
  if (!lent.is_cpu()) return;
  // Not of an operator, whose memory a mode may follow that is active now.
  static const c10::Storage nothing(c10::Storage::use_byte_size_t(), 0,
                                    at::DataPtr(nullptr, at::kCPU), nullptr,
                                    /*resizable=*/false);
  lent.unsafeGetTensorImpl()->set_storage_keep_dtype(nothing);
}

// Gloo passes sums around a ring: 2 (n - 1) messages of each of n ranks, one
// after the other. Where ranks share cores each of them waits until a core is
// free. Of few bytes every rank gets those of all others at once instead.
constexpr std::size_t kMostExchangedBytes = std::size_t{1} << 19;  // received

// False for groups of nobody, which simulations have.
bool is_of_gloo(const Group& group) {
  const std::vector<c10::Device> devices = group->getDeviceTypes();
  return std::any_of(devices.begin(), devices.end(),
                     [](c10::Device device) { return device.is_cpu(); }) &&
         group->getBackend(c10::DeviceType::CPU)->getBackendName() == "gloo";
}

bool is_exchanged(const at::Tensor& tensor, const Group& group,
                  c10d::ReduceOp::RedOpType op) {
  const auto ranks = static_cast<std::size_t>(group->getSize());
  const bool is_known = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::MAX;
  return is_known && ranks > 2 && tensor.is_cpu() &&
         tensor.nbytes() * ranks <= kMostExchangedBytes && is_of_gloo(group);
}

// Python may have said what it does then: it raises an error of its own, which
// tells where each rank is.
void tell_of_lost_ranks(const std::string& reason) {
  const auto found =
      c10::Dispatcher::singleton().findSchema({"tensoropt::lost_ranks", ""});
  const auto key = c10::DispatchKey::CompositeImplicitAutograd;
  if (!found || !found->hasKernelForDispatchKey(key)) return;
  torch::jit::Stack arguments{reason};
  found->callBoxed(arguments);
}

// For the other ranks: it throws where they do not come in time, or have gone.
void wait_for_ranks(const Work& work) {
  try {
    work->wait();
  } catch (const std::exception& error) {
    tell_of_lost_ranks(error.what());
    throw;
  }
}

// Memory of messages, which allocations do not count, as they do not count
// that of Gloo.
at::Tensor message_buffer(at::IntArrayRef shape,
                          const at::TensorOptions& options) {
  const auto num_bytes =
      static_cast<std::size_t>(c10::multiply_integers(shape)) *
      options.dtype().itemsize();
  const auto memory = std::make_shared_for_overwrite<char[]>(num_bytes);
  return at::from_blob(
      memory.get(), shape, [memory](void*) {}, options);
}

void exchange(at::Tensor& tensor, const Group& group,
              c10d::ReduceOp::RedOpType op) {
  const NetworkTimer timer(tensor);
  count(StepKind::kAllReduce);
  const std::vector<std::int64_t> shape{group->getSize(), tensor.numel()};
  at::Tensor in = message_buffer(shape, tensor.options());
  at::Tensor out = message_buffer(shape, tensor.options());
  in.copy_(tensor.reshape({1, -1}).expand(shape));
  at::Tensor flat_in = in.view(-1);
  at::Tensor flat_out = out.view(-1);
  std::vector<std::int64_t> equal;
  wait_for_ranks(call_all_to_all(*group, flat_out, flat_in, equal, equal));
  const at::Tensor all = out.view(shape);
  const at::Tensor result = op == c10d::ReduceOp::MAX
                                ? all.amax(0)
                                : all.sum(0, false, tensor.scalar_type());
  tensor.copy_(result.view(tensor.sizes()));
}

Started nothing_to_send(const at::Tensor& operand, at::Tensor result) {
  return {operand, std::move(result), {}, Work()};
}

}  // namespace

Group find_group(const std::string& name) {
  return c10d::resolve_process_group(name);
}

at::Tensor Started::wait() {
  const NetworkTimer timer(result_);
  if (work_) wait_for_ranks(work_);
  for (at::Tensor& lent : lent_) end_loan(lent);
  lent_.clear();
  operand_ = at::Tensor();
  return std::move(result_);
}

Started start_all_gather(const at::Tensor& part, const Group& group) {
  std::vector<std::int64_t> shape = part.sizes().vec();
  shape.insert(shape.begin(), group->getSize());
  at::Tensor result = at::empty(shape, part.options());
  if (part.numel() == 0) return nothing_to_send(part, std::move(result));
  const NetworkTimer timer(part);
  count(StepKind::kAllGather);
  at::Tensor out = flat(result);
  at::Tensor in = flat(part);
  Work work = call_all_gather(*group, out, in);
  return {part,
          std::move(result),
          {std::move(in), std::move(out)},
          std::move(work)};
}

Started start_reduce_scatter(const at::Tensor& parts, const Group& group) {
  at::Tensor result = at::empty(parts.sizes().slice(1), parts.options());
  if (parts.numel() == 0) return nothing_to_send(parts, std::move(result));
  const NetworkTimer timer(parts);
  count(StepKind::kReduceScatter);
  at::Tensor out = flat(result);
  at::Tensor in = flat(parts);
  Work work = call_reduce_scatter(*group, out, in);
  return {parts,
          std::move(result),
          {std::move(in), std::move(out)},
          std::move(work)};
}

Started start_all_reduce(const at::Tensor& tensor, const Group& group,
                         c10d::ReduceOp::RedOpType op) {
  if (tensor.numel() == 0) return nothing_to_send(tensor, tensor);
  const NetworkTimer timer(tensor);
  count(StepKind::kAllReduce);
  std::vector<at::Tensor> tensors{tensor.view(tensor.sizes())};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  Work work = group->allreduce(tensors, options);
  return {tensor, tensor, std::move(tensors), std::move(work)};
}

Started start_all_to_all(const at::Tensor& parts, const Group& group) {
  at::Tensor result = at::empty_like(parts, at::MemoryFormat::Contiguous);
  if (parts.numel() == 0) return nothing_to_send(parts, std::move(result));
  const NetworkTimer timer(parts);
  count(StepKind::kAllToAll);
  at::Tensor out = flat(result);
  at::Tensor in = flat(parts);
  std::vector<std::int64_t> equal;
  Work work = call_all_to_all(*group, out, in, equal, equal);
  return {parts,
          std::move(result),
          {std::move(in), std::move(out)},
          std::move(work)};
}

at::Tensor all_gather(const at::Tensor& part, const Group& group) {
  return start_all_gather(part, group).wait();
}

at::Tensor reduce_scatter(const at::Tensor& parts, const Group& group) {
  return start_reduce_scatter(parts, group).wait();
}

void all_reduce(at::Tensor& tensor, const Group& group,
                c10d::ReduceOp::RedOpType op) {
  if (tensor.numel() > 0 && is_exchanged(tensor, group, op)) {
    exchange(tensor, group, op);
  } else {
    start_all_reduce(tensor, group, op).wait();
  }
}

at::Tensor all_to_all(const at::Tensor& parts, const Group& group) {
  return start_all_to_all(parts, group).wait();
}

at::Tensor all_to_all(const at::Tensor& entries,
                      std::vector<std::int64_t> sends,
                      std::vector<std::int64_t> receives, const Group& group) {
  const NetworkTimer timer(entries);
  count(StepKind::kAllToAll);
  std::vector<std::int64_t> shape = entries.sizes().vec();
  shape[0] = std::accumulate(receives.begin(), receives.end(), std::int64_t{0});
  at::Tensor result = at::empty(shape, entries.options());
  at::Tensor in = entries;
  wait_for_ranks(call_all_to_all(*group, result, in, receives, sends));
  return result;
}

NetworkTimer::NetworkTimer(c10::Device device)
    : active_(timing_on() && !inside_timer()), device_(device) {
  if (!active_) return;
  wait_for(device_);  // before all else: it may throw
  inside_timer() = true;
  start_ = std::chrono::steady_clock::now();
}

NetworkTimer::~NetworkTimer() {
  if (!active_) return;
  inside_timer() = false;
  try {
    wait_for(device_);
  } catch (const c10::Error&) {
    return;  // the device's own call reports it
  }
  network_ns() += std::chrono::duration_cast<std::chrono::nanoseconds>(
                      std::chrono::steady_clock::now() - start_)
                      .count();
}

void count(StepKind kind) { ++counters()[static_cast<int>(kind)]; }

void count_program() { ++counters()[kNumStepKinds]; }

std::array<std::int64_t, kNumCounters> counts() {
  std::array<std::int64_t, kNumCounters> result;
  for (int i = 0; i < kNumCounters; ++i) result[i] = counters()[i];
  return result;
}

void reset_counts() {
  for (auto& counter : counters()) counter = 0;
}

namespace {

void sum_kernel(const at::Tensor& tensor, const std::string& group) {
  at::Tensor sum = tensor;
  all_reduce(sum, find_group(group));
}

void sum_meta(const at::Tensor& /*tensor*/, const std::string& /*group*/) {}

}  // namespace

void sum_over_ranks(const at::Tensor& tensor, const std::string& group) {
  call_below_autograd<sum_kernel>("tensoropt::sum_over_ranks_", tensor, group);
}

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def("sum_over_ranks_(Tensor(a!) x, str group) -> ()");
  library.def("collective_counts() -> int[]", [] {
    const auto values = counts();
    return std::vector<std::int64_t>(values.begin(), values.end());
  });
  library.def("reset_collective_counts() -> ()", [] { reset_counts(); });
  library.def("lost_ranks(str reason) -> ()");
  library.def("time_network(bool on) -> ()", [](bool on) {
    network_ns() = 0;
    timing_on() = on;
  });
  library.def("network_time() -> float",
              [] { return 1e-9 * static_cast<double>(network_ns()); });
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("sum_over_ranks_", sum_kernel);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("sum_over_ranks_", sum_meta);
}

}  // namespace tensoropt
