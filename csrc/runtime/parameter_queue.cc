#include "runtime/parameter_queue.h"

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace tensoropt {

namespace {

// Threads of backward look for queues as well.
struct Numbered {
  std::mutex mutex;
  std::int64_t last = 0;
  std::unordered_map<std::int64_t, c10::weak_intrusive_ptr<ParameterQueue>>
      queues;
};

Numbered& numbered() {
  // Never destroyed: queues may outlive what is at the end of the process.
  static auto* all = new Numbered;
  return *all;
}

}  // namespace

ParameterQueue::ParameterQueue(std::int64_t most_under_way,
                               std::int64_t bucket_bytes,
                               std::int64_t shard_bytes)
    : most_under_way_(static_cast<std::size_t>(most_under_way)),
      bucket_bytes_(bucket_bytes),
      shard_bytes_(shard_bytes) {
  TORCH_CHECK_VALUE(most_under_way >= 1, "a queue has place for ",
                    most_under_way, " under way, give at least 1");
  const std::int64_t least = std::min(bucket_bytes, shard_bytes);
  TORCH_CHECK_VALUE(least >= 0, "a bucket has ", least,
                    " bytes, give at least 0");
}

void ParameterQueue::begin_value(std::int64_t slot, Program program,
                                 at::Tensor x) {
  values_.insert_or_assign(slot, Execution(std::move(program), std::move(x)));
}

void ParameterQueue::begin_values(std::vector<std::int64_t> slots,
                                  GatherBucket bucket) {
  const auto gathering = std::make_shared<Gathering>(
      Gathering{std::move(slots), std::move(bucket)});
  for (const std::int64_t slot : gathering->slots) {
    values_.insert_or_assign(slot, gathering);
  }
}

void ParameterQueue::put_value(std::int64_t slot, at::Tensor value) {
  values_.insert_or_assign(slot, std::move(value));
}

at::Tensor ParameterQueue::take_value(std::int64_t slot) {
  const auto begun = values_.find(slot);
  if (begun == values_.end()) return {};
  if (const auto* found =
          std::get_if<std::shared_ptr<Gathering>>(&begun->second)) {
    finish(std::shared_ptr<Gathering>(*found));
  }
  Value value = std::move(values_.extract(slot).mapped());
  if (auto* execution = std::get_if<Execution>(&value)) {
    return execution->finish();
  }
  return std::get<at::Tensor>(std::move(value));
}

// What was begun anew since is left.
void ParameterQueue::finish(const std::shared_ptr<Gathering>& gathering) {
  std::vector<at::Tensor> wholes = gathering->bucket.finish();
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    const auto found = values_.find(gathering->slots[i]);
    if (found == values_.end()) continue;
    const auto* begun = std::get_if<std::shared_ptr<Gathering>>(&found->second);
    if (begun == nullptr || *begun != gathering) continue;
    found->second = std::move(wholes[i]);
  }
}

void ParameterQueue::begin_gradient(std::int64_t slot, Program program,
                                    at::Tensor gradient) {
  Pass& pass = this_pass();
  pass.begun.insert(slot);
  for (UnderWay& earlier : pass.under_way) {
    if (auto* alone = std::get_if<Alone>(&earlier)) alone->execution.advance();
  }
  if (const auto key = GradientBucket::key_of(program, gradient)) {
    GradientBucket& bucket = pass.bucket(*key);
    bucket.add(slot, std::move(program), std::move(gradient));
    const bool scatters = std::get<StepKind>(*key) == StepKind::kReduceScatter;
    const std::int64_t full_bytes = scatters ? shard_bytes_ : bucket_bytes_;
    if (bucket.num_bytes() >= full_bytes) begin_bucket(pass, bucket);
    return;
  }
  make_room(pass);
  Execution execution(std::move(program), std::move(gradient));
  if (execution.is_under_way()) {
    pass.under_way.push_back(Alone{slot, std::move(execution)});
  } else {
    pass.ready[slot] = execution.finish();
  }
}

bool ParameterQueue::has_gradient(std::int64_t slot) {
  return this_pass().begun.contains(slot);
}

at::Tensor ParameterQueue::take_gradient(std::int64_t slot) {
  Pass& pass = this_pass();
  pass.begun.erase(slot);
  if (!pass.ready.contains(slot)) {
    for (auto& [key, bucket] : pass.buckets) {
      if (!bucket.empty()) begin_bucket(pass, bucket);
    }
  }
  while (!pass.ready.contains(slot) && !pass.under_way.empty()) {
    pass.finish_oldest();
  }
  auto found = pass.ready.extract(slot);
  return found ? std::move(found.mapped()) : at::Tensor();
}

void ParameterQueue::make_room(Pass& pass) const {
  if (pass.under_way.size() == most_under_way_) pass.finish_oldest();
}

void ParameterQueue::begin_bucket(Pass& pass, GradientBucket& bucket) const {
  make_room(pass);
  pass.under_way.emplace_back(bucket.start());
}

GradientBucket& ParameterQueue::Pass::bucket(const GradientBucket::Key& key) {
  const auto found =
      std::find_if(buckets.begin(), buckets.end(),
                   [&](const auto& entry) { return entry.first == key; });
  if (found != buckets.end()) return found->second;
  return buckets.emplace_back(key, GradientBucket()).second;
}

void ParameterQueue::Pass::finish_oldest() {
  UnderWay oldest = std::move(under_way.front());
  under_way.pop_front();
  if (auto* alone = std::get_if<Alone>(&oldest)) {
    ready[alone->slot] = alone->execution.finish();
    return;
  }
  for (auto& [slot, reduced] :
       std::get<GradientBucket::Reduction>(oldest).finish()) {
    ready[slot] = std::move(reduced);
  }
}

// Numbers ascend: one below may be around this pass, one above has ended.
ParameterQueue::Pass& ParameterQueue::this_pass() {
  const int number = torch::autograd::get_current_graph_task_id();
  passes_.erase(passes_.upper_bound(number), passes_.end());
  return passes_[number];
}

std::int64_t ParameterQueue::number_of(const Pointer& queue) {
  Numbered& all = numbered();
  const std::lock_guard lock(all.mutex);
  if (queue->number_ == 0) {
    queue->number_ = ++all.last;
    all.queues.emplace(queue->number_, queue);
  }
  return queue->number_;
}

ParameterQueue::Pointer ParameterQueue::find(std::int64_t number) {
  Numbered& all = numbered();
  const std::lock_guard lock(all.mutex);
  const auto found = all.queues.find(number);
  Pointer queue = found == all.queues.end() ? Pointer() : found->second.lock();
  TORCH_CHECK_VALUE(queue, "there is no parameter queue ", number);
  return queue;
}

void ParameterQueue::release_resources() {
  values_.clear();
  passes_.clear();
  Numbered& all = numbered();
  const std::lock_guard lock(all.mutex);
  all.queues.erase(number_);
}

}  // namespace tensoropt
