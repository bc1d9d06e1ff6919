// Implements <tersor/lanes.h>: checks, then kernels.
#include "kernels/intsum/lanes.h"

#include <tersor/error.h>
#include <tersor/lanes.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace tersor {
namespace {

constexpr unsigned kMostBits = 14;  // f32 holds 11 fractional bits of such codes

void check_width(unsigned lanes) {
  if (lanes == 8 || lanes == 16 || lanes == 32) return;
  throw InvalidArgument("lanes: " + std::to_string(lanes) + " bits; give 8, 16 or 32");
}

void check(const LaneFormat& format, std::size_t count, std::size_t bytes) {
  check_width(format.lanes);
  if (format.bits < 2 || format.bits > std::min(kMostBits, format.lanes))
    throw InvalidArgument("lanes: codes of " + std::to_string(format.bits) + " bits in lanes of " +
                          std::to_string(format.lanes) + "; give 2 to " +
                          std::to_string(std::min(kMostBits, format.lanes)));
  if (!std::isfinite(format.scale) || !(format.scale >= 0x1p-100f))
    throw InvalidArgument("lanes: the scale is " + std::to_string(format.scale) +
                          "; give a finite number of at least 2^-100");
  if (bytes != format.bytes(count))
    throw InvalidArgument("lanes: " + std::to_string(bytes) + " bytes for " +
                          std::to_string(count) + " values, which take " +
                          std::to_string(format.bytes(count)));
}

void combine(ByteSpan sums, ConstByteSpan others, unsigned lanes,
             kernels::LaneOperation operation) {
  check_width(lanes);
  if (sums.size() != others.size() || sums.size() % (lanes / 8) != 0)
    throw InvalidArgument("lanes: " + std::to_string(sums.size()) + " and " +
                          std::to_string(others.size()) + " bytes of lanes of " +
                          std::to_string(lanes) + " bits");
  kernels::lanes_combine(sums.data(), others.data(), sums.size() / (lanes / 8), lanes, operation);
}

}  // namespace

std::size_t encode_lanes(std::span<const float> values, const LaneFormat& format,
                         std::uint64_t secret, ByteSpan lanes) {
  check(format, values.size(), lanes.size());
  const kernels::Noise noise{.rounding = Rounding::kStochastic, .key = secret};
  const auto found =
      kernels::lanes_encode(values.data(), values.size(), format, noise, lanes.data());
  if (found.not_finite == 0) return found.cut;
  std::ranges::fill(lanes, std::byte{});
  throw InvalidArgument("lanes: " + std::to_string(found.not_finite) +
                        " values are not finite; their sum would be none");
}

void decode_lanes(ConstByteSpan lanes, const LaneFormat& format, std::span<float> values) {
  check(format, values.size(), lanes.size());
  kernels::lanes_decode(lanes.data(), values.size(), format, values.data());
}

void add_lanes(ByteSpan sums, ConstByteSpan others, unsigned lanes) {
  combine(sums, others, lanes, kernels::LaneOperation::kAdd);
}

void subtract_lanes(ByteSpan sums, ConstByteSpan others, unsigned lanes) {
  combine(sums, others, lanes, kernels::LaneOperation::kSubtract);
}

}  // namespace tersor
