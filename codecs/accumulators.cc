// Implements <tersor/accumulators.h>: checks, then kernels.
#include "kernels/intsum/accumulators.h"

#include <tersor/accumulators.h>
#include <tersor/error.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

namespace tersor {
namespace {

constexpr unsigned kMaxBits = 14;  // f32 holds 11 fractional bits of such codes

void check_width(unsigned accumulator_bits) {
  if (accumulator_bits == 8 || accumulator_bits == 16 || accumulator_bits == 32) return;
  throw InvalidArgumentError("accumulators: " + std::to_string(accumulator_bits) +
                             " bits; give 8, 16 or 32");
}

void check(const AccumulatorFormat& format, std::size_t count, std::size_t bytes) {
  check_width(format.accumulator_bits);
  if (format.bits < 2 || format.bits > std::min(kMaxBits, format.accumulator_bits))
    throw InvalidArgumentError("accumulators: codes of " + std::to_string(format.bits) +
                               " bits in accumulators of " +
                               std::to_string(format.accumulator_bits) + "; give 2 to " +
                               std::to_string(std::min(kMaxBits, format.accumulator_bits)));
  if (!std::isfinite(format.scale) || !(format.scale >= 0x1p-100f))
    throw InvalidArgumentError("accumulators: the scale is " + std::to_string(format.scale) +
                               "; give a finite number of at least 2^-100");
  if (bytes != format.bytes(count))
    throw InvalidArgumentError("accumulators: " + std::to_string(bytes) + " bytes for " +
                               std::to_string(count) + " values, which take " +
                               std::to_string(format.bytes(count)));
}

void check_disjoint(ConstByteSpan one, ConstByteSpan other) {
  if (one.data() < other.data() + other.size() && other.data() < one.data() + one.size())
    throw InvalidArgumentError("accumulators: the output overlaps another argument");
}

void combine(ByteSpan sums, ConstByteSpan others, unsigned accumulator_bits,
             kernels::AccumulatorOperation operation) {
  check_width(accumulator_bits);
  if (sums.size() != others.size() || sums.size() % (accumulator_bits / 8) != 0)
    throw InvalidArgumentError("accumulators: " + std::to_string(sums.size()) + " and " +
                               std::to_string(others.size()) + " bytes of accumulators of " +
                               std::to_string(accumulator_bits) + " bits");
  if (sums.data() != others.data()) check_disjoint(sums, others);
  kernels::accumulators_combine(sums.data(), others.data(), sums.size() / (accumulator_bits / 8),
                                accumulator_bits, operation);
}

}  // namespace

std::size_t encode_accumulators(std::span<const float> values, const AccumulatorFormat& format,
                                std::uint64_t secret, ByteSpan accumulators) {
  check(format, values.size(), accumulators.size());
  check_disjoint(accumulators, std::as_bytes(values));
  const kernels::Noise noise{.rounding = Rounding::kStochastic, .key = secret};
  const auto found = kernels::accumulators_encode(values.data(), values.size(), format, noise,
                                                  accumulators.data());
  if (found.not_finite == 0) return found.clamped;
  std::ranges::fill(accumulators, std::byte{});
  throw InvalidArgumentError("accumulators: " + std::to_string(found.not_finite) +
                             " values are not finite");
}

void decode_accumulators(ConstByteSpan accumulators, const AccumulatorFormat& format,
                         std::span<float> values) {
  check(format, values.size(), accumulators.size());
  const ConstByteSpan output = std::as_bytes(values);
  if (accumulators.data() != output.data() || accumulators.size() != output.size())
    check_disjoint(accumulators, output);
  kernels::accumulators_decode(accumulators.data(), values.size(), format, values.data());
}

void add_accumulators(ByteSpan sums, ConstByteSpan others, unsigned accumulator_bits) {
  combine(sums, others, accumulator_bits, kernels::AccumulatorOperation::kAdd);
}

void subtract_accumulators(ByteSpan sums, ConstByteSpan others, unsigned accumulator_bits) {
  combine(sums, others, accumulator_bits, kernels::AccumulatorOperation::kSubtract);
}

}  // namespace tersor
