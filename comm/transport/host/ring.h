// Native sums and maxima over ranks. Where the order does not matter, what is little goes step by
// step (steps.h). All else is combined part by part in the order of ranks owner + 1, …, owner, and
// then handed round, whichever of two ways it goes:
//
// Ring    In step k, rank r sends part r - 1 - k to rank r + 1 and takes part r - 2 - k from rank
//         r - 1 (all cyclic). For the first ranks - 1 steps what comes is combined with the own
//         values; then part r is whole on its owner r, and in as many steps more the whole parts
//         are copied. Parts go in chunks: chunk c of step k + 1 leaves as soon as chunk c of step k
//         has come, so combining hides behind the wire. 2 · (ranks - 1) / ranks of the bytes a
//         rank.
// Direct  Everybody sends everything to everybody and combines by itself. One step instead of
//         2 · (ranks - 1); for a few KiB.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "comm/transport/host/channel.h"
#include "comm/transport/host/exchange.h"

namespace tersor::host {

/// What was measured to be good, for rates from 100 Mbit/s to memory's.
struct RingTuning {
  static constexpr std::size_t kLeastChunkBytes = 16 * 1024;
  static constexpr std::size_t kMostChunkBytes = 256 * 1024;
  static constexpr std::size_t kChunksPerPart = 8;  ///< where that stays between these
  static constexpr std::size_t kWindow = 16;        ///< chunks sent and not yet answered by others
};

/// How parts are cut into chunks: all into equally many, of which the last ones may be empty.
struct RingChunks {
  std::size_t chunk_count = 1;  ///< values in a chunk
  std::size_t chunks = 1;       ///< of each part

  RingChunks(std::span<const ValueSpan> parts, Dtype dtype);
  ValueSpan of(ValueSpan part, std::size_t chunk) const;
};

/// What becomes of `count` values of one dtype that meet others: kernels::add_values, or
/// kernels::maximum_values.
using Combine = void (*)(void* into, const void* from, Dtype dtype, std::size_t count);

/// Parts of a sum, one a rank. The envelope says the dtype of all, and the count of all together.
struct RingWork {
  std::span<const ValueSpan> parts;
  Combine combine;
};

/// The sum or maximum as a transfer.
std::unique_ptr<HostTransfer> make_reduction(const Start& start, const RingWork& work);

}  // namespace tersor::host
