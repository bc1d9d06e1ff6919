// Delayed visibility of global stores, with PTX_DEVICE_STORES=late. The host keeps stores in order,
// so kernels with missing fences would work by accident; a GPU does not guarantee the order. A
// block sees its own stores at once. Other blocks see the stores in any order: after a thread's
// fence, at a random time, or at the end of the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace ptx {

/// Threads of a warp, and the number of barriers passed by their block.
struct Storing {
  std::uint64_t block;
  std::uint32_t warp, lanes, phase;
};

/// The bytes visible to a block at an address. The mask selects valid bytes.
struct Seen {
  std::uint32_t mask = 0;
  unsigned char bytes[32];
};

class LateStores {
 public:
  static constexpr std::uint64_t kNoBlock = ~std::uint64_t{0};

  explicit LateStores(std::uint64_t seed) : random_(seed) {}
  ~LateStores() { let_all_go(); }

  /// `by` names a single lane.
  void put(const Storing& by, std::uint64_t address, const unsigned char* bytes, unsigned count);
  /// The bytes stored by the block itself. Returns another block with a held-back store at the
  /// address, or none.
  std::uint64_t look(std::uint64_t block, std::uint64_t address, unsigned count, Seen& seen);

  /// A fence for the whole device. Publishes the thread's stores and all stores ordered before the
  /// fence in the block.
  void fence(const Storing& by);
  /// A fence for the block. A later device fence of any thread in the block publishes these stores,
  /// too.
  void order(const Storing& by);
  /// Publishes stores before an atomic operation or a direct store.
  void let_go(std::uint64_t block, std::uint64_t address, unsigned count);
  /// Publishes a random half of the stores.
  void let_some_go();
  void let_all_go();

 private:
  static constexpr unsigned kBytes = 16;  // stores of up to 16 bytes are published without tearing
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
