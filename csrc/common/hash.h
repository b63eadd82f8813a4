// Combining hashes of values that are compared by content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tensoropt {

// Mixes `value` into `seed` (the finaliser of splitmix64).
inline std::size_t hash_combine(std::size_t seed, std::size_t value) {
  std::uint64_t x = seed + 0x9e3779b97f4a7c15ULL + value;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<std::size_t>(x ^ (x >> 31));
}

// Of the numbers in their order.
inline std::size_t hash_all(std::size_t seed, const std::vector<int>& values) {
  seed = hash_combine(seed, values.size());
  for (const int value : values) {
    seed = hash_combine(seed, static_cast<std::size_t>(value));
  }
  return seed;
}

struct HashNumbers {
  std::size_t operator()(const std::vector<int>& values) const {
    return hash_all(0, values);
  }
};

}  // namespace tensoropt
