#include "search/frontier.h"

#include <algorithm>

namespace tensoropt {

void Frontier::push_back(Point point, std::uint32_t from_left,
                         std::uint32_t from_right) {
  memory.push_back(point.memory);
  time.push_back(point.time);
  left.push_back(from_left);
  right.push_back(from_right);
}

void Frontier::append(const Frontier& other) {
  memory.insert(memory.end(), other.memory.begin(), other.memory.end());
  time.insert(time.end(), other.time.begin(), other.time.end());
  left.insert(left.end(), other.left.begin(), other.left.end());
  right.insert(right.end(), other.right.begin(), other.right.end());
}

FrontierView Frontier::view(std::size_t first, std::size_t last) const {
  return {std::span(memory).subspan(first, last - first),
          std::span(time).subspan(first, last - first),
          static_cast<std::uint32_t>(first)};
}

std::vector<bool> thin(FrontierView frontier, double delta) {
  const std::size_t size = frontier.size();
  std::vector<bool> keep(size, delta <= 0);
  if (delta <= 0 || size == 0) return keep;
  keep.front() = keep.back() = true;
  const double factor = 1 + delta;
  std::size_t kept = 0;
  for (std::size_t next = 1; next < size;) {
    if (frontier.time[kept] <= factor * frontier.time[next]) {
      ++next;  // covered by the kept point before it
      continue;
    }
    // The furthest point that still covers `next` from behind.
    kept = next;
    while (kept + 1 < size &&
           frontier.memory[kept + 1] <= factor * frontier.memory[next]) {
      ++kept;
    }
    keep[kept] = true;
    next = kept + 1;
  }
  return keep;
}

std::size_t FrontierBuilder::first_not_below(double memory) const {
  return std::lower_bound(memory_.begin(), memory_.end(), memory) -
         memory_.begin();
}

bool FrontierBuilder::refuses(Point point) const {
  if (point.memory > memory_limit_) return true;
  const std::size_t at =
      std::upper_bound(memory_.begin(), memory_.end(), point.memory) -
      memory_.begin();
  return at > 0 && time_[at - 1] <= point.time;
}

void FrontierBuilder::add(Point point, std::uint32_t left,
                          std::uint32_t right) {
  if (refuses(point)) return;
  const std::size_t at = first_not_below(point.memory);
  std::size_t last = at;  // [at, last) are dominated by the new point
  while (last < size() && time_[last] >= point.time) ++last;
  if (last == at) {
    memory_.insert(memory_.begin() + at, point.memory);
    time_.insert(time_.begin() + at, point.time);
    left_.insert(left_.begin() + at, left);
    right_.insert(right_.begin() + at, right);
    return;
  }
  memory_[at] = point.memory;
  time_[at] = point.time;
  left_[at] = left;
  right_[at] = right;
  memory_.erase(memory_.begin() + at + 1, memory_.begin() + last);
  time_.erase(time_.begin() + at + 1, time_.begin() + last);
  left_.erase(left_.begin() + at + 1, left_.begin() + last);
  right_.erase(right_.begin() + at + 1, right_.begin() + last);
}

void FrontierBuilder::add_product(const FrontierView& left,
                                  const FrontierView& right) {
  for (std::size_t i = 0; i < left.size(); ++i) {
    for (std::size_t j = 0; j < right.size(); ++j) {
      add({left.memory[i] + right.memory[j], left.time[i] + right.time[j]},
          left.first + i, right.first + j);
    }
  }
}

bool FrontierBuilder::move_to(Frontier& out) {
  const FrontierView all{memory_, time_, 0};
  const std::vector<bool> keep = thin(all, delta_);
  bool dropped = false;
  for (std::size_t i = 0; i < size(); ++i) {
    if (keep[i]) {
      out.push_back(all.point(i), left_[i], right_[i]);
    } else {
      dropped = true;
    }
  }
  memory_.clear();
  time_.clear();
  left_.clear();
  right_.clear();
  return dropped;
}

}  // namespace tensoropt
