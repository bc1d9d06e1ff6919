// Who owns which values of a parameter: parts in units of its codec (CodecTraits::unit), so that no
// block of a codec and no counter of a random number is cut, and residuals stay where they are
// however parameters are grouped into messages.
#pragma once

#include <tersor/align.h>
#include <tersor/codec.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tersor {

inline constexpr std::size_t kUnit = CodecTraits{}.unit;  // values; of most codecs

/// Where a parameter of `count` values is cut for such a codec: a matrix nowhere.
inline std::size_t unit_of(const Codec& codec, std::size_t count) {
  const CodecTraits traits = codec.traits();
  return traits.needs_shape ? std::bit_ceil(std::max(count, traits.unit)) : traits.unit;
}

/// A chunk is shared among its lanes; but where these are more, none becomes shorter than so: a
/// message costs microseconds, whatever is in it (docs/algorithms.md#chunks).
inline constexpr std::size_t kLanesOfChunk = 32;

/// On a grid lanes share messages, of which there are few on any number of ranks: chunks grow with
/// the lanes to four times their length. Of very many lanes none becomes so short that frames'
/// headers cost more than a few per cent.
inline std::size_t lanes_of_grid_chunk(std::size_t lanes) {
  return std::clamp<std::size_t>(lanes / 4, 64, 512);
}

/// Values of each lane of a chunk. On a grid, where lanes are at most `longest`, there are two
/// chunks at least, so that one's work hides behind the other's messages, unless lanes are shorter
/// than 32 units.
inline std::size_t lane_length(std::size_t chunk_count, std::size_t lanes, std::size_t unit = kUnit,
                               std::size_t most_lanes = kLanesOfChunk, std::size_t longest = 0) {
  std::size_t length = std::max<std::size_t>(chunk_count / std::min(lanes, most_lanes), 1);
  const bool halves = most_lanes > kLanesOfChunk && longest >= 32 * unit;
  if (halves) length = std::min(length, ceil_div(longest, 2));
  return align_up(length, unit);
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

/// The shard that a reduce-scatter leaves on `rank`, of ranks that get equal ones.
inline Range shard_range(std::size_t count, int rank, int ranks) {
  const std::size_t shard = count / static_cast<std::size_t>(ranks);
  return {static_cast<std::size_t>(rank) * shard, shard};
}

/// Which part of a parameter `rank` owns: owners rotate with the parameter's index.
inline int owned_part(int rank, int ranks, std::uint32_t parameter) {
  const auto shift = static_cast<int>(parameter % static_cast<std::uint32_t>(ranks));
  return (rank - shift + ranks) % ranks;
}

/// The values of a parameter that `rank` owns.
inline Range owned_range(std::size_t count, int rank, int ranks, std::uint32_t parameter,
                         std::size_t unit = kUnit) {
  return part_range(count, owned_part(rank, ranks, parameter), ranks, unit);
}

/// The same of a range that begins at a multiple of the unit.
inline Range owned_range(Range whole, int rank, int ranks, std::uint32_t parameter,
                         std::size_t unit = kUnit) {
  const Range owned = owned_range(whole.count, rank, ranks, parameter, unit);
  return {whole.first + owned.first, owned.count};
}

}  // namespace tersor
