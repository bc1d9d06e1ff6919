// Stores to global memory that other blocks do not see yet, under PTX_DEVICE_STORES=late. The
// host's memory keeps the order of stores, so that a kernel without its fences would be right here;
// a GPU's does not. A block sees its own stores at once. Others see them when a thread's fence
// promises it, at some moment that is drawn, or when the kernel ends; in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace ptx {

/// Threads of a warp, and the barriers that their block has passed.
struct Storing {
  std::uint64_t block;
  std::uint32_t warp, lanes, phase;
};

/// Bytes that a block sees at an address, where the mask says so.
struct Seen {
  std::uint32_t mask = 0;
  unsigned char bytes[32];
};

class LateStores {
 public:
  static constexpr std::uint64_t kNoBlock = ~std::uint64_t{0};

  explicit LateStores(std::uint64_t seed) : random_(seed) {}
  ~LateStores() { let_all_go(); }

  /// `by` names one lane.
  void put(const Storing& by, std::uint64_t address, const unsigned char* bytes, unsigned count);
  /// What the block itself has stored there. Gives another block whose store is held back, or none.
  std::uint64_t look(std::uint64_t block, std::uint64_t address, unsigned count, Seen& seen);

  /// A fence for the whole device: own stores go, and all that are ordered before it in the block.
  void fence(const Storing& by);
  /// A fence for the block, which lets a later fence of any of its threads take these stores along.
  void order(const Storing& by);
  /// Before an atomic operation or a direct store.
  void let_go(std::uint64_t block, std::uint64_t address, unsigned count);
  /// Half of them, drawn.
  void let_some_go();
  void let_all_go();

 private:
  static constexpr unsigned kBytes = 16;  // are seen at once where they were stored at once
  static constexpr std::uint32_t kOrdered = 0;

  struct Line {
    std::uint64_t block, address;
    std::uint32_t mask = 0;
    alignas(16) unsigned char bytes[kBytes];
    std::uint16_t threads[kBytes];
    std::uint32_t phases[kBytes];
  };
  using Lines = std::unordered_multimap<std::uint64_t, Line>;  // by address

  Lines::iterator find(std::uint64_t block, std::uint64_t address);
  static void write(Line& line, std::uint32_t mask);
  template <class F>
  void for_lines_of(std::uint64_t block, F change);
  bool draw();

  std::mutex mutex_;
  Lines lines_;
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> addresses_;  // by block
  std::uint64_t random_;
};

}  // namespace ptx
