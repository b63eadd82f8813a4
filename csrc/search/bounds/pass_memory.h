// Memory for the tables of passes, one after the other: tables are large, and
// the first touch of new memory takes longer than what is computed in it.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tensoropt {

class PassMemory {
 public:
  // Of one pass; what is in it is not defined.
  class Block {
   public:
    Block(PassMemory& memory, std::size_t bytes)
        : memory_(memory), held_(memory.take(bytes)) {}
    ~Block() { memory_.give_back(std::move(held_)); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    std::byte* data() const { return held_.bytes.get(); }

   private:
    friend class PassMemory;
    PassMemory& memory_;
    struct Held {
      std::unique_ptr<std::byte[]> bytes;
      std::size_t size = 0;
    } held_;
  };

 private:
  Block::Held take(std::size_t bytes) {
    Block::Held held;
    {
      const std::scoped_lock lock(mutex_);
      if (!idle_.empty()) {
        held = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (held.size >= bytes) return held;
    held.bytes.reset();
    return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  }
  void give_back(Block::Held held) {
    const std::scoped_lock lock(mutex_);
    idle_.push_back(std::move(held));
  }

  std::mutex mutex_;
  std::vector<Block::Held> idle_;
};

}  // namespace tensoropt
