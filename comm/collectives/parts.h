// Ownership of a parameter's values. Parts are multiples of the codec's unit (CodecTraits::unit),
// so no codec block and no random-number counter is split. Residuals keep their positions for any
// grouping of parameters into messages.
#pragma once

#include <tersor/align.h>
#include <tersor/codec.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tersor {

inline constexpr std::size_t kUnit = CodecTraits{}.unit;  // values; the unit of most codecs

/// The cut unit of a codec for a parameter of `count` values. A matrix is never cut.
inline std::size_t unit_of(const Codec& codec, std::size_t count) {
  const CodecTraits traits = codec.traits();
  return traits.needs_shape ? std::bit_ceil(std::max(count, traits.unit)) : traits.unit;
}

/// A chunk is divided among its shards. Beyond this number of shards, the shard length stays
/// constant, because each message costs microseconds (docs/explain/algorithms.md#chunks).
inline constexpr std::size_t kShardsOfChunk = 32;

/// On a grid, shards share a few messages for any number of ranks. Chunks grow with the shards up
/// to four times the length. The upper limit keeps the cost of frame headers at a few per cent.
inline std::size_t shards_of_grid_chunk(std::size_t shards) {
  return std::clamp<std::size_t>(shards / 4, 64, 512);
}

/// Values per shard of a chunk. On a grid with shards up to `longest`, there are at least two
/// chunks to overlap work with messages, unless shards are shorter than 32 units.
inline std::size_t shard_length(std::size_t chunk_count, std::size_t shards,
                                std::size_t unit = kUnit, std::size_t max_shards = kShardsOfChunk,
                                std::size_t longest = 0) {
  std::size_t length = std::max<std::size_t>(chunk_count / std::min(shards, max_shards), 1);
  const bool halves = max_shards > kShardsOfChunk && longest >= 32 * unit;
  if (halves) length = std::min(length, ceil_div(longest, 2));
  return align_up(std::min(length, std::numeric_limits<std::size_t>::max() / 2), unit);
}

/// The values [first, first + count) of a parameter.
struct Range {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Part `part` of `parts` of a parameter of `count` values; empty parts are legal.
inline Range part_range(std::size_t count, int part, int parts, std::size_t unit = kUnit) {
  const std::size_t units = ceil_div(count, unit);
  const auto edge = [&](int index) {
    return std::min(count, units * static_cast<std::size_t>(index) / parts * unit);
  };
  return {edge(part), edge(part + 1) - edge(part)};
}

/// The shard of `rank` after a reduce-scatter with equal shards.
inline Range shard_range(std::size_t count, int rank, int ranks) {
  const std::size_t shard = count / static_cast<std::size_t>(ranks);
  return {static_cast<std::size_t>(rank) * shard, shard};
}

/// The part of a parameter owned by `rank`. Owners rotate with the parameter's index.
inline int owned_part(int rank, int ranks, std::uint32_t parameter) {
  const auto shift = static_cast<int>(parameter % static_cast<std::uint32_t>(ranks));
  return (rank - shift + ranks) % ranks;
}

/// The values of a parameter owned by `rank`.
inline Range owned_range(std::size_t count, int rank, int ranks, std::uint32_t parameter,
                         std::size_t unit = kUnit) {
  return part_range(count, owned_part(rank, ranks, parameter), ranks, unit);
}

/// Like above, for a range starting at a multiple of the unit.
inline Range owned_range(Range whole, int rank, int ranks, std::uint32_t parameter,
                         std::size_t unit = kUnit) {
  const Range owned = owned_range(whole.count, rank, ranks, parameter, unit);
  return {whole.first + owned.first, owned.count};
}

}  // namespace tersor
