#include "cost/op_cost.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace tensoropt {

namespace {

// Backward reads what forward read and the gradients, and writes gradients.
constexpr double kBackwardTraffic = 2.0;

// Kernels of one fused or foreach optimizer update of a tensor.
constexpr double kOptimizerLaunches = 2.0;

// How often the largest part of a factor goes into it.
double parts_of(const Factor& factor, AxisSet axes, const Mesh& mesh) {
  const int parts = mesh.size_of(axes);
  const std::int64_t count = factor.count();
  if (splits_evenly(count, parts)) return parts;
  return static_cast<double>(count) /
         static_cast<double>(largest_part(count, parts));
}

// By how much the busiest rank's share of the work is smaller than the whole.
double compute_parts(const Rule& rule, const OpConfig& config,
                     const Mesh& mesh) {
  double parts = 1;
  const std::vector<AxisSet> axes = factor_axes(rule, config);
  for (std::size_t factor = 0; factor < axes.size(); ++factor) {
    if (axes[factor] == 0) continue;
    parts *= parts_of(rule.factors[factor], axes[factor], mesh);
  }
  return parts;
}

double traffic_bytes(const Graph& graph, const Node& node, const Rule& rule,
                     const OpInterface& interface, const Mesh& mesh) {
  double bytes = 0;
  for (std::size_t i = 0; i < node.operands.size(); ++i) {
    bytes += rule.operands[i].moves *
             local_bytes(graph.operand(node, static_cast<int>(i)).meta,
                         interface.operands[i].value, mesh);
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    bytes += rule.outputs[i].moves *
             local_bytes(graph.output(node, static_cast<int>(i)).meta,
                         interface.outputs[i].value, mesh);
  }
  return bytes;
}

double parts_of(const std::vector<int>& factors, const Rule& rule,
                const std::vector<AxisSet>& axes, const Mesh& mesh) {
  double parts = 1;
  for (const int factor : factors) {
    parts *= parts_of(rule.factors[factor], axes[factor], mesh);
  }
  return parts;
}

double saved_bytes(const Graph& graph, const Node& node, const Rule& rule,
                   const OpConfig& config, const OpInterface& interface,
                   const Mesh& mesh) {
  double bytes = 0;
  for (std::size_t i = 0; i < rule.outputs.size(); ++i) {
    if (!rule.outputs[i].saved) continue;
    bytes += local_bytes(graph.output(node, static_cast<int>(i)).meta,
                         interface.outputs[i].value, mesh);
  }
  const std::vector<AxisSet> axes = factor_axes(rule, config);
  for (const ExtraSaved& extra : rule.extra_saved) {
    const int split = extra.only_if_split;
    if (split != kNoFactor && axes[split] == 0) continue;
    bytes += extra.bytes / parts_of(extra.factors, rule, axes, mesh);
  }
  return bytes;
}

double inner_collectives_s(const Rule& rule, const OpConfig& config, Pass pass,
                           const Machine& machine) {
  const std::vector<AxisSet> axes = factor_axes(rule, config);
  double time_s = 0;
  for (const InnerCollective& inner : rule.collectives) {
    AxisSet over = 0;
    for (const int factor : inner.over) over |= axes[factor];
    if (inner.pass != pass || over == 0) continue;
    const double bytes =
        inner.bytes / parts_of(inner.divided_by, rule, axes, machine.mesh);
    time_s += inner.times * machine.collectives.time_s(inner.kind, over, bytes);
  }
  return time_s;
}

// Rates are those of the first floating-point output, of its parts if it is
// complex, else of float32.
DType compute_dtype(const Graph& graph, const Node& node) {
  for (const ValueId id : node.outputs) {
    const DType dtype = graph.value(id).meta.dtype;
    if (is_floating_point(dtype)) return real_dtype(dtype);
  }
  return DType::kFloat32;
}

}  // namespace

double local_bytes(const TensorMeta& meta, const Layout& layout,
                   const Mesh& mesh) {
  return meta.num_bytes() / shards_of_largest(meta.counts(), layout, mesh);
}

OpWork op_work(const Graph& graph, const Node& node, const Rule& rule,
               const OpConfig& config, const Mesh& mesh) {
  OpWork work;
  work.dtype = compute_dtype(graph, node);
  work.launches = rule.launches;
  work.view = rule.view;
  work.attention = rule.attention;
  work.backward = graph.has_backward(node);
  const double parts = compute_parts(rule, config, mesh);
  work.forward_flops = rule.forward_flops / parts;
  work.backward_flops = rule.backward_flops / parts;
  work.bytes =
      traffic_bytes(graph, node, rule, interface_of(rule, config), mesh);
  return work;
}

PassTimes roofline(const OpWork& work, const Device& device) {
  if (work.view) return {};
  const double rate = work.attention ? device.attention_flops_per_s(work.dtype)
                                     : device.matmul_flops_per_s(work.dtype);
  const double memory_s = work.bytes / device.copy_bytes_per_s();
  const double launches_s = work.launches * device.launch_overhead_s;
  PassTimes times;
  times.forward_s = launches_s + std::max(work.forward_flops / rate, memory_s);
  if (work.backward) {
    times.backward_s = launches_s + std::max(work.backward_flops / rate,
                                             kBackwardTraffic * memory_s);
  }
  return times;
}

CostParts op_cost(const Graph& graph, const Node& node, const Rule& rule,
                  const OpConfig& config, const Machine& machine,
                  const PassTimes& compute, Saved saved) {
  const bool runs_again = saved == Saved::kRemade;
  const bool backward = graph.has_backward(node);
  CostParts cost;
  const double forwards = runs_again ? 2 : 1;
  cost.micro_batch_s = forwards * compute.forward_s;
  if (!rule.view) {
    cost.network_s =
        forwards * inner_collectives_s(rule, config, Pass::kForward, machine);
  }
  if (backward) {
    if (!runs_again) {
      cost.kept_bytes = saved_bytes(graph, node, rule, config,
                                    interface_of(rule, config), machine.mesh);
    }
    cost.micro_batch_s += compute.backward_s;
    if (!rule.view) {
      cost.network_s +=
          inner_collectives_s(rule, config, Pass::kBackward, machine);
    }
  }
  cost.micro_batch_s += cost.network_s;
  return cost;
}

TrainingSetup::TrainingSetup(StateBytes state_bytes)
    : state_bytes_(std::move(state_bytes)) {
  for (const auto& [dtype, bytes] : state_bytes_) {
    TO_CHECK(bytes >= 0, "optimizer state of {} bytes per element of {}", bytes,
             to_string(dtype));
  }
}

TrainingSetup TrainingSetup::of_states(double tensors) {
  StateBytes bytes;
  for (const DType dtype :
       {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16,
        DType::kComplex64, DType::kComplex128}) {
    bytes[dtype] = tensors * item_size(dtype);
  }
  return TrainingSetup(std::move(bytes));
}

double TrainingSetup::state_bytes(DType parameter) const {
  const auto found = state_bytes_.find(parameter);
  TO_CHECK(found != state_bytes_.end(),
           "the optimizer's description does not say how many bytes of state a "
           "{} parameter has",
           to_string(parameter));
  return found->second;
}

double update_traffic_bytes(const TensorMeta& meta, const Layout& storage,
                            const Mesh& mesh, const TrainingSetup& setup) {
  const double elements = static_cast<double>(meta.num_elements()) /
                          shards_of_largest(meta.counts(), storage, mesh);
  return elements *
         (3 * item_size(meta.dtype) + 2 * setup.state_bytes(meta.dtype));
}

CostParts parameter_cost(const TensorMeta& meta, bool trainable,
                         const Layout& storage, const Mesh& mesh,
                         const Device& device, const TrainingSetup& setup) {
  const double bytes = local_bytes(meta, storage, mesh);
  if (!trainable) return {.state_bytes = bytes};
  CostParts cost;
  const double elements = static_cast<double>(meta.num_elements()) /
                          shards_of_largest(meta.counts(), storage, mesh);
  cost.state_bytes = 2 * bytes + elements * setup.state_bytes(meta.dtype);
  cost.step_s = kOptimizerLaunches * device.launch_overhead_s +
                update_traffic_bytes(meta, storage, mesh, setup) /
                    device.copy_bytes_per_s();
  return cost;
}

}  // namespace tensoropt
