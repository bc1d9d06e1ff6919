// Comparisons of values with expected values.
#pragma once

#include <tersor/span.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace tersor::bench {

/// Returns |actual - expected| / |expected| in the Euclidean norm, computed in double. 0 if both
/// are equal, NaN if a value is NaN. Both spans are on the host and hold f32, bf16 or f16 in equal
/// number. Uses all cores.
double relative_error(ConstValueSpan expected, ConstValueSpan actual);

/// Variant with a reference in double.
double relative_error(std::span<const double> expected, ConstValueSpan actual);

/// Throws Error unless `error` is at most `limit`. `what` names the checked result.
void require_within(double error, double limit, std::string_view what);

/// The Euclidean norm.
double norm(ConstValueSpan values);

/// sum[i] += factor * values[i].
void add_values(double factor, ConstValueSpan values, std::span<double> sum);

/// True if both spans hold the same bits.
bool same_bits(ConstByteSpan a, ConstByteSpan b);

/// Returns a hash of the bits. Different bits have equal hashes with probability of about 2^-64.
/// Used between ranks without shared memory.
std::uint64_t fingerprint(ConstByteSpan bytes);

}  // namespace tersor::bench
