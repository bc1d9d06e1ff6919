// How far values are from what they should be.
#pragma once

#include <tersor/span.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace tersor::bench {

/// |actual - expected| / |expected| in the Euclidean norm, in double; 0 where they are equal, NaN
/// where a value is. Host values of f32, bf16 or f16, as many in both; all cores take part.
double relative_error(ConstValueSpan expected, ConstValueSpan actual);

/// The same against a reference in double.
double relative_error(std::span<const double> expected, ConstValueSpan actual);

/// Throws Error unless `what` is within `limit`.
void require_within(double error, double limit, std::string_view what);

/// The Euclidean norm.
double norm(ConstValueSpan values);

/// sum[i] += factor * values[i].
void add_values(double factor, ConstValueSpan values, std::span<double> sum);

/// Whether they hold the same bits.
bool same_bits(ConstByteSpan a, ConstByteSpan b);

/// A number that tells bits apart: equal for the same ones, else different but for a chance of
/// about 2^-64. For ranks that cannot see each other's memory.
std::uint64_t fingerprint(ConstByteSpan bytes);

}  // namespace tersor::bench
