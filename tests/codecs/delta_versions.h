// Two versions of a model's weights, for tests of deltas.
#pragma once

#include "kernels/delta/cpu.h"
#include "tests/support/reference.h"

#include <tersor/delta.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace tersor::test {

using Bytes = std::vector<std::byte>;

inline constexpr DeltaDtype kDeltaDtypes[] = {
    DeltaDtype::kF32,   DeltaDtype::kBf16, DeltaDtype::kF16,  DeltaDtype::kF64,
    DeltaDtype::kE4m3,  DeltaDtype::kE5m2, DeltaDtype::kInt8, DeltaDtype::kInt16,
    DeltaDtype::kInt32, DeltaDtype::kInt64};

struct Versions {
  std::vector<DeltaTensor> tensors;
  std::vector<Bytes> base, now;

  void add(const std::string& name, DeltaDtype dtype, std::size_t count) {
    tensors.push_back({name, dtype, {count}});
    base.emplace_back(count * delta_dtype_bytes(dtype));
    now.emplace_back(base.back().size());
  }
  static std::vector<ConstByteSpan> spans(const std::vector<Bytes>& list) {
    return {list.begin(), list.end()};
  }
  Bytes encode(const DeltaOptions& options = {}) const {
    return delta_encode(tensors, spans(base), spans(now), options);
  }
  void check(const Bytes& delta, const DeltaOptions& options = {}) const {
    delta_check(tensors, spans(base), delta, options);
  }
  /// Returns the base after applying a delta.
  std::vector<Bytes> applied(const Bytes& delta, const DeltaOptions& options = {}) const {
    std::vector<Bytes> values = base;
    const std::vector<ByteSpan> spans(values.begin(), values.end());
    delta_apply(tensors, spans, delta, options);
    return values;
  }
};

/// Returns the bits of a number of a weight's size, or any bits.
inline std::uint64_t weight_bits(std::uint64_t seed, DeltaDtype dtype) {
  const unsigned width = 8 * delta_dtype_bytes(dtype), exponent = delta_exponent_bits(dtype);
  const std::uint64_t random = mixed(seed);
  if (exponent == 0 || random % 61 == 0) return mixed(~random) >> (64 - width);
  const std::uint64_t bias = (std::uint64_t{1} << (exponent - 1)) - 1;
  const auto below = static_cast<std::uint64_t>(std::countr_zero(random >> 8 | 64));
  const std::uint64_t magnitude = (bias - 3 - std::min<std::uint64_t>(below, bias - 3))
                                      << (width - 1 - exponent) |
                                  mixed(random) >> (65 - width + exponent);
  return magnitude | (random >> 7 & 1) << (width - 1);
}

/// Weights, and a version in which one of `every` values changed: mostly by one step of the last
/// bit, sometimes by up to `most` steps, rarely to any bits. 0: no value changed.
inline void fill(Versions& versions, std::size_t index, std::size_t every,
                 std::uint64_t most = 20) {
  const DeltaDtype dtype = versions.tensors[index].dtype;
  const unsigned width = delta_dtype_bytes(dtype);
  Bytes &base = versions.base[index], &now = versions.now[index];
  for (std::size_t i = 0; i < base.size() / width; ++i) {
    const std::uint64_t random = mixed(index * 1'000'003 + i), old = weight_bits(random, dtype);
    std::uint64_t value = old;
    if (every != 0 && mixed(~random) % every == 0) {
      const std::uint64_t step = random % 8 != 0 ? 1 : mixed(random + 7) % most;
      value = random % 2 == 0 ? old + step : old - step;
      if (random % 509 == 0) value = mixed(random + 9);
    }
    std::memcpy(base.data() + i * width, &old, width);
    std::memcpy(now.data() + i * width, &value, width);
  }
}

/// Computes the checksum of a changed delta.
inline void reseal(Bytes& delta) {
  if (delta.size() < 64) return;
  std::memset(delta.data() + 56, 0, 8);
  const std::uint64_t sum = kernels::delta_checksum(delta.data(), delta.size(), 0);
  std::memcpy(delta.data() + 56, &sum, 8);
}

}  // namespace tersor::test
