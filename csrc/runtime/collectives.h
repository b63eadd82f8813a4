// Collectives over c10d process groups, and counts of them.
//
//   Group group = find_group(name);
//   at::Tensor whole = all_gather(part, group);   // [size, ...]
//   Started started = start_all_gather(part, group);
//   whole = started.wait();                       // the same, later
//
// Operands must be contiguous. The result may be used when the call returns, or
// that of wait(): on the CPU this waits, on a GPU the current stream does.
// Operands without elements, of all ranks of the group then, are not sent and
// not counted.
//
// Where a wait fails, `tensoropt::lost_ranks(reason)` is called, if Python has
// registered a kernel of it for CompositeImplicitAutograd; what it raises is
// thrown in place of the error of the group.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "common/step_code.h"

namespace tensoropt {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The process group that Python registered under this name. Throws c10::Error
// for unknown names.
Group find_group(const std::string& name);

// A collective under way, which keeps its operand until it has ended. One that
// is dropped ends by itself. The group works on tensors that are lent to it:
// they share memory with the operand and the result, until `wait`.
class Started {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  Started(at::Tensor operand, at::Tensor result, std::vector<at::Tensor> lent,
          Work work)
      : operand_(std::move(operand)),
        result_(std::move(result)),
        lent_(std::move(lent)),
        work_(std::move(work)) {}

  // Once.
  at::Tensor wait();

 private:
  at::Tensor operand_;
  at::Tensor result_;
  std::vector<at::Tensor> lent_;
  Work work_;
};

// [size of the group, shape of `part`]: the parts of all ranks.
Started start_all_gather(const at::Tensor& part, const Group& group);
at::Tensor all_gather(const at::Tensor& part, const Group& group);

// `parts` is [size of the group, ...]; the sum of what all ranks have at the
// index of this rank.
Started start_reduce_scatter(const at::Tensor& parts, const Group& group);
at::Tensor reduce_scatter(const at::Tensor& parts, const Group& group);

// In place.
Started start_all_reduce(const at::Tensor& tensor, const Group& group,
                         c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM);
void all_reduce(at::Tensor& tensor, const Group& group,
                c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM);

// The sum, in place, by the operator tensoropt::sum_over_ranks_, which whoever
// looks at operators below autograd sees.
void sum_over_ranks(const at::Tensor& tensor, const std::string& group);

// `parts` is [size of the group, ...]; part i goes to rank i. The result holds
// what rank i sent at i.
Started start_all_to_all(const at::Tensor& parts, const Group& group);
at::Tensor all_to_all(const at::Tensor& parts, const Group& group);

// The first sends[0] entries of dim 0 go to rank 0, the next to rank 1, ...;
// the result holds receives[i] entries of rank i, in the order of ranks.
at::Tensor all_to_all(const at::Tensor& entries,
                      std::vector<std::int64_t> sends,
                      std::vector<std::int64_t> receives, const Group& group);

// What was executed in this process since the start or the last reset: steps,
// by their kind, then programs.
inline constexpr int kNumCounters = kNumStepKinds + 1;

// Adds the time between its making and its end to that spent on the network,
// while timing is on. One inside another counts once. Where the device works
// behind the host, its current stream is waited for before and after.
class NetworkTimer {
 public:
  explicit NetworkTimer(c10::Device device);
  explicit NetworkTimer(const at::Tensor& tensor)
      : NetworkTimer(tensor.device()) {}
  ~NetworkTimer();
  NetworkTimer(const NetworkTimer&) = delete;
  NetworkTimer& operator=(const NetworkTimer&) = delete;

 private:
  bool active_;
  c10::Device device_;
  std::chrono::steady_clock::time_point start_;
};

void count(StepKind kind);
void count_program();
std::array<std::int64_t, kNumCounters> counts();
void reset_counts();

}  // namespace tensoropt
