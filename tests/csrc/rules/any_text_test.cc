// Every reader of texts in the core, given any bytes: a value or a UserError,
// under sanitizers nothing else (make fuzz). Layouts come from plan files,
// patterns and dtypes from programs, quotas from the system's files.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "common/cpu_count.h"
#include "ir/dtype.h"
#include "rules/declared_rule.h"
#include "rules/notation.h"
#include "sharding/layout.h"

namespace tensoropt {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string_view>;

std::uint64_t number_from_environment(const char* name, std::uint64_t other) {
  const char* text = std::getenv(name);
  return text == nullptr ? other : std::strtoull(text, nullptr, 10);
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  std::size_t roll(std::size_t sides) { return random_() % sides; }
  char byte() { return static_cast<char>(roll(256)); }

  // Of words that readers know, and of bytes.
  std::string text(const Words& words) {
    std::string made;
    for (std::size_t part = roll(12); part > 0; --part) {
      if (roll(4) > 0) {
        made += words[roll(words.size())];
      } else {
        made.append(roll(roll(50) == 0 ? 5000 : 4), byte());
      }
    }
    return made;
  }

 private:
  std::mt19937_64 random_;
};

// Whether it was read.
bool is_read(const std::function<void()>& read) {
  try {
    read();
    return true;
  } catch (const UserError& error) {
    EXPECT_NE(std::string_view(error.what()), "");
    return false;
  }
}

bool read_layout(Dice& dice) {
  const std::string text = dice.text(
      {"R", "P", "S", "S0", "S13", "S14", ",", "1", "0", "99999999999", "-"});
  return is_read([&] {
    const Layout layout = Layout::parse(text);
    EXPECT_EQ(Layout::parse(layout.to_string()), layout);
  });
}

bool read_pattern(Dice& dice) {
  const std::string text =
      dice.text({"b", "k1", " ", " ", ", ", " -> ", "->", "_", "...", "()"});
  return is_read([&] {
    const Pattern pattern = parse_pattern(text);
    pattern.factors();
    std::vector<std::string> tensors;
    for (const DimNames& term : pattern.operands) {
      std::string& name = tensors.emplace_back("x");
      name += std::to_string(tensors.size() + term.size());
    }
    definition_of({"my.op.default", pattern, tensors});
  });
}

bool read_dtype(Dice& dice) {
  const std::string text = dice.text({"float32", "int", "8", "64", "bool"});
  return is_read([&] { EXPECT_EQ(to_string(parse_dtype(text)), text); });
}

// What is no quota sets none.
bool read_quota(Dice& dice, const fs::path& root) {
  const auto write = [&](const char* file, const Words& words) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file, std::ios::binary) << dice.text(words);
  };
  const Words numbers = {"max", "100000", " ", "50000", "-1", "0", "\n"};
  write("proc/self/cgroup", {"0:", ":", "/", "a", "..", "cpu", ",", "\n"});
  write("sys/fs/cgroup/cpu.max", numbers);
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", numbers);
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", numbers);
  EXPECT_GE(available_cpus(root), 1);
  return true;
}

TEST(AnyText, IsReadOrRefused) {
  const auto count = number_from_environment("TENSOROPT_FUZZ_COUNT", 2000);
  const auto seed = number_from_environment("TENSOROPT_FUZZ_SEED", 1);
  const fs::path root = fs::path(::testing::TempDir()) /
                        ("any_text" + std::to_string(std::random_device()()));
  int found = 0;
  for (std::uint64_t i = seed; i < seed + count; ++i) {
    SCOPED_TRACE(::testing::Message() << "TENSOROPT_FUZZ_SEED=" << i);
    Dice dice(i);
    found += read_layout(dice) + read_pattern(dice) + read_dtype(dice);
    if (i % 16 == 0) read_quota(dice, root);
    if (::testing::Test::HasFailure()) break;
  }
  fs::remove_all(root);
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace tensoropt
