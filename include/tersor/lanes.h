/// Whole numbers in lanes, to a scale that all know beforehand: what a secure sum adds. Sums wrap
/// around modulo 2^lanes, with masks or without; the sum of `ranks` ranks' codes is right where
/// bits + ceil(log2(ranks)) <= lanes.
///
/// A code is value / scale, cut to [-levels, levels], levels = 2^(bits - 1) - 1, and rounded up or
/// down at random so that its mean is right. Lanes are u8, u16 or u32, little-endian, two's
/// complement. All functions run on the calling thread, on host memory; InvalidArgument where spans
/// do not match or a format is none, and nothing was written then.
#pragma once

#include <tersor/span.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor {

struct LaneFormat {
  unsigned bits = 8;    ///< of a code: 2 to 14
  unsigned lanes = 16;  ///< bits of a lane: 8, 16 or 32, at least `bits`
  float scale = 1;      ///< of a code's unit: finite, at least 2^-100

  constexpr unsigned levels() const { return (1u << (bits - 1)) - 1; }
  constexpr std::size_t bytes(std::size_t count) const { return count * lanes / 8; }
};

/// Writes the codes of values; returns how many were cut. `secret` decides how they are rounded: of
/// the system's random numbers, new for each call and told to nobody, where the sum is to hide what
/// a rank added. InvalidArgument for a value that is not finite; all lanes are 0 then.
std::size_t encode_lanes(std::span<const float> values, const LaneFormat& format,
                         std::uint64_t secret, ByteSpan lanes);

/// Values of codes, or of sums of them.
void decode_lanes(ConstByteSpan lanes, const LaneFormat& format, std::span<float> values);

/// sums = sums + others, lane by lane.
void add_lanes(ByteSpan sums, ConstByteSpan others, unsigned lanes);
/// sums = sums - others, lane by lane.
void subtract_lanes(ByteSpan sums, ConstByteSpan others, unsigned lanes);

}  // namespace tersor
