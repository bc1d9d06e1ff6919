/// Integers with a scale that all ranks know in advance, for secure sums. Sums wrap around modulo
/// 2^accumulator_bits, with or without masks. The sum of the codes of `ranks` ranks is exact if
/// bits + ceil(log2(ranks)) <= accumulator_bits.
///
/// A code is value / scale, clipped to [-levels, levels] with levels = 2^(bits - 1) - 1. Codes
/// round up or down at random with the correct mean. An accumulator holds one code or one sum of
/// codes: u8, u16 or u32, little-endian, two's complement. All functions use host memory and the
/// calling thread, and are thread-safe. They throw InvalidArgumentError for an invalid format or
/// for spans of unequal lengths; nothing is written then.
#pragma once

#include <tersor/span.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor {

/// The format of codes and accumulators.
struct AccumulatorFormat {
  unsigned bits = 8;               ///< bits per code: 2 to 14
  unsigned accumulator_bits = 16;  ///< bits per accumulator: 8, 16 or 32, and at least `bits`
  float scale = 1;                 ///< the value of code 1: finite, at least 2^-100

  /// Returns the largest code.
  constexpr unsigned levels() const { return (1u << (bits - 1)) - 1; }
  /// Returns the bytes of the accumulators of `count` values.
  constexpr std::size_t bytes(std::size_t count) const { return count * accumulator_bits / 8; }
};

/// Writes the codes of `values` to `accumulators` (format.bytes(values.size()) bytes). Returns the
/// number of clipped values. `secret` seeds the random rounding. If the sum must hide a rank's
/// contribution, draw a new secret from the system's random numbers for each call and never reveal
/// the secret. Throws InvalidArgumentError for a value that is not finite; all accumulators are 0
/// then.
std::size_t encode_accumulators(std::span<const float> values, const AccumulatorFormat& format,
                                std::uint64_t secret, ByteSpan accumulators);

/// Decodes codes, or sums of codes, from `accumulators` (format.bytes(values.size()) bytes) to
/// `values`.
void decode_accumulators(ConstByteSpan accumulators, const AccumulatorFormat& format,
                         std::span<float> values);

/// Adds accumulators: sums = sums + others. Both spans have the same number of bytes.
/// `accumulator_bits` is 8, 16 or 32.
void add_accumulators(ByteSpan sums, ConstByteSpan others, unsigned accumulator_bits);
/// Subtracts accumulators: sums = sums - others. The parameters are those of `add_accumulators`.
void subtract_accumulators(ByteSpan sums, ConstByteSpan others, unsigned accumulator_bits);

}  // namespace tersor
