// A device made of fibres: runs kernel bodies on the CPU, one block after the other in an order
// shuffled by a seed, the threads of a block in turns. It knows every span of device memory and
// each access to it, and stops at
//   - an access outside of all spans, or of an element of shared memory that does not exist
//   - two threads on one byte with no barrier in between (two blocks: at all), unless both read or
//     both are atomic
//   - a byte that is read before it was written
//   - a barrier, or an operation of a warp, that not all of its threads reach
// with an EmulatorError that names kernel, block, thread and address. What it cannot show is how a
// device orders memory, and how fast it is.
#pragma once

#include "kernels/common/memory.cuh"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

namespace tersor::emulator {

class EmulatorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What all launches of this program share.
struct Settings {
  std::uint64_t seed = 1;      ///< of the order of blocks and threads; grows with each launch
  std::uint8_t poison = 0xcd;  ///< of shared memory; every other launch its inverse
  unsigned most_blocks = 3;    ///< of a launch: fewer than tasks, so that blocks do several
  std::size_t launches = 0;    ///< counted
};
Settings& settings();

enum class Written : std::uint8_t { kNo, kYes };

/// Declares a span of device memory while it lives. Labels stand in messages.
class Region {
 public:
  Region(const void* memory, std::size_t bytes, Written written, std::string label);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  const void* memory_;
};

/// Whether a pointer is into a declared span (or to its end).
bool is_known(const void* pointer, std::size_t bytes = 0);

/// The host wrote [pointer, pointer + bytes), or nobody did. Not checked where no region has it.
void mark(const void* pointer, std::size_t bytes, Written written);

/// Zeros from the stream. Throws where they would lie outside of all regions.
void clear(void* pointer, std::size_t bytes);

/// What the stream copies; bytes that nobody wrote stay such. Throws where it would touch anything
/// outside of all regions.
void copy(void* to, const void* from, std::size_t bytes);

struct BlockState;

/// One fibre's view of its warp.
class Warp {
 public:
  Warp(BlockState& block, unsigned thread) : block_(block), thread_(thread) {}

  unsigned thread_rank() const { return thread_ % 32; }
  std::uint32_t maximum(std::uint32_t value) const;
  std::uint32_t shuffle_xor(std::uint32_t value, unsigned mask) const;
  std::uint32_t ballot(bool flag) const;
  std::uint64_t sum(std::uint64_t value) const;

 private:
  BlockState& block_;
  unsigned thread_;
};

/// One fibre's view of its block.
class Block {
 public:
  Block(BlockState& state, unsigned thread) : state_(state), thread_(thread) {}

  unsigned threads() const;
  unsigned warps() const { return threads() / 32; }
  unsigned thread_rank() const { return thread_; }
  unsigned warp_rank() const { return thread_ / 32; }
  unsigned rank() const;
  unsigned blocks() const;
  Warp warp() const { return {state_, thread_}; }

  void sync() const;
  bool any(bool flag) const;
  std::uint64_t exclusive_sum(std::uint64_t value, std::uint64_t& total) const;
  bool is_last(std::uint32_t* ticket) const;

 private:
  BlockState& state_;
  unsigned thread_;
};

/// A launch without its types.
struct Launch {
  std::string kernel;
  unsigned blocks = 1;
  unsigned threads = 32;
  std::size_t shared_bytes = 0;
  std::function<void(const Block& block, void* shared)> body;
};
void run(const Launch& launch);

/// "kernels::QuantizeEncodeKernel<…>" of a type.
std::string readable_name(const char* mangled);

}  // namespace tersor::emulator
