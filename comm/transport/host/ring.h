// Native sums and maxima over ranks. If the order may vary, short inputs use the step lists of
// steps.h. Everything else is combined part by part in the order of ranks owner + 1, …, owner. The
// results are then distributed. Two algorithms exist:
//
//   Ring    In step k, rank r sends part r - 1 - k to rank r + 1 and receives part r - 2 - k from
//           rank r - 1 (all cyclic). During the first ranks - 1 steps, received values are combined
//           with local values. Then owner r has the complete part r, and the next ranks - 1 steps
//           copy the complete parts. Parts are split into chunks: chunk c of step k + 1 starts as
//           soon as chunk c of step k has arrived, to overlap computation with communication. Each
//           rank sends 2 · (ranks - 1) / ranks of the bytes.
//   Direct  Each rank sends everything to each other rank and combines by itself. A single step
//           instead of 2 · (ranks - 1), for a few KiB.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/transport/host/channel.h"
#include "comm/transport/host/exchange.h"

namespace tersor::host {

/// Measured to be fast at link rates from 100 Mbit/s up to memory speed.
struct RingTuning {
  static constexpr std::size_t kMinChunkBytes = 16 * 1024;
  static constexpr std::size_t kMaxChunkBytes = 256 * 1024;
  /// Used if the chunk size stays between these limits.
  static constexpr std::size_t kChunksPerPart = 8;
  /// Maximum number of chunks sent ahead of the received chunks.
  static constexpr std::size_t kWindow = 16;
};

/// The division of parts into chunks: the same number for each part, some of which may be empty.
struct RingChunks {
  std::size_t chunk_count = 1;  ///< values per chunk
  std::size_t chunks = 1;       ///< number of chunks per part

  RingChunks(std::span<const ValueSpan> parts, Dtype dtype);
  ValueSpan of(ValueSpan part, std::size_t chunk) const;
};

/// Combines `count` values: kernels::add_values or kernels::maximum_values.
using Combine = void (*)(void* into, const void* from, Dtype dtype, std::size_t count);

/// The parts of a sum, one per rank. The envelope holds the dtype and the total count.
struct RingWork {
  std::vector<ValueSpan> parts;
  Combine combine;
};

/// Creates the transfer of a sum or maximum.
std::unique_ptr<HostTransfer> make_reduction(const Start& start, RingWork work);

}  // namespace tersor::host
