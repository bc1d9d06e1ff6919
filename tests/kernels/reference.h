// A slow reference of the kernels, written from the format's definition in double precision and bit
// by bit. Independent of the kernels' formulas.
#pragma once

#include <tersor/dtype.h>
#include <tersor/isa.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace tersor::reference {

/// A float format with a sign, `exponent_bits` and `mantissa_bits`.
struct Narrow {
  int exponent_bits, mantissa_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr Narrow kBf16{8, 7};
constexpr Narrow kF16{5, 10};

/// Round to nearest, ties to even, by exact double arithmetic. NaN becomes 0x7fff.
inline std::uint16_t narrow(float value, Narrow format) {
  if (std::isnan(value)) return 0x7fff;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(value));
  const std::uint16_t infinity = ((1 << format.exponent_bits) - 1) << format.mantissa_bits;
  if (std::isinf(magnitude)) return sign | infinity;
  if (magnitude == 0) return sign;
  const int smallest = 1 - format.bias();
  int exponent = std::max(std::ilogb(magnitude), smallest);
  double mantissa = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  if (mantissa == std::ldexp(1.0, format.mantissa_bits + 1)) ++exponent, mantissa /= 2;
  if (exponent > format.bias()) return sign | infinity;
  const bool normal = mantissa >= std::ldexp(1.0, format.mantissa_bits);
  const int field = normal ? exponent + format.bias() : 0;
  const int fraction = static_cast<int>(mantissa) & ((1 << format.mantissa_bits) - 1);
  return static_cast<std::uint16_t>(sign | field << format.mantissa_bits | fraction);
}

/// Rounds to one of the two nearest bf16. Rounds away from zero if the remainder, in 65,536ths of
/// the distance between the two bf16, plus `random` is at least 65,536. NaN becomes 0x7fff.
inline std::uint16_t stochastic_bf16(float value, int random) {
  if (!std::isfinite(value)) return narrow(value, kBf16);
  const double magnitude = std::abs(static_cast<double>(value));
  const int exponent = magnitude == 0 ? -126 : std::max(std::ilogb(magnitude), -126);
  const double steps = std::ldexp(magnitude, 7 - exponent), whole = std::floor(steps);
  const bool up = (steps - whole) * 65536 + random >= 65536;
  const auto rounded = static_cast<float>(std::ldexp(whole + up, exponent - 7));
  return narrow(std::copysign(rounded, value), kBf16);
}

inline float widen(std::uint16_t bits, Narrow format) {
  const int field = bits >> format.mantissa_bits & ((1 << format.exponent_bits) - 1);
  const int fraction = bits & ((1 << format.mantissa_bits) - 1);
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (field == (1 << format.exponent_bits) - 1) return fraction ? std::nanf("") : sign * INFINITY;
  const int exponent = std::max(field, 1) - format.bias() - format.mantissa_bits;
  const int mantissa = fraction + (field ? 1 << format.mantissa_bits : 0);
  return sign * static_cast<float>(std::ldexp(mantissa, exponent));
}

/// Value `index` of a span of `dtype`, as f32.
inline float load(const void* values, Dtype dtype, std::size_t index) {
  float value;
  std::uint16_t bits;
  if (dtype == Dtype::kF32) {
    std::memcpy(&value, static_cast<const float*>(values) + index, 4);
    return value;
  }
  std::memcpy(&bits, static_cast<const std::uint16_t*>(values) + index, 2);
  return widen(bits, dtype == Dtype::kBf16 ? kBf16 : kF16);
}

inline void store(float value, void* values, Dtype dtype, std::size_t index) {
  if (dtype == Dtype::kF32)
    static_cast<float*>(values)[index] = value;
  else
    static_cast<std::uint16_t*>(values)[index] =
        narrow(value, dtype == Dtype::kBf16 ? kBf16 : kF16);
}

/// Like store, for a decode: a finite value beyond f16's range becomes ±65504.
inline void store_decoded(float value, void* values, Dtype dtype, std::size_t index) {
  const bool limited = dtype == Dtype::kF16 && std::isfinite(value) && std::fabs(value) > 65504;
  store(limited ? std::copysign(65504.0f, value) : value, values, dtype, index);
}

/// Philox4x32 with `rounds` rounds, from its definition.
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> x,
                                           std::array<std::uint32_t, 2> key, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t a = 0xD2511F53ull * x[0], b = 0xCD9E8D57ull * x[2];
    x = {static_cast<std::uint32_t>((b >> 32) ^ x[1] ^ key[0]), static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>((a >> 32) ^ x[3] ^ key[1]), static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return x;
}

/// The random byte of element e.
inline int noise(std::uint64_t e, std::uint64_t key, std::uint32_t step, std::uint32_t parameter) {
  const std::uint64_t c = e / 512 * 32 + e % 128 / 4;
  const auto words =
      philox({static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(c >> 32), step, parameter},
             {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}, 7);
  return words[e % 512 / 128] >> (8 * (e % 4)) & 0xff;
}

/// The 16 random bits of element e. The lower byte uses another key: one SplitMix64 step after
/// `key`.
inline int wide_noise(std::uint64_t e, std::uint64_t key, std::uint32_t step,
                      std::uint32_t parameter) {
  std::uint64_t low = key + 0x9e3779b97f4a7c15u;
  low = (low ^ low >> 30) * 0xbf58476d1ce4e5b9u;
  low = (low ^ low >> 27) * 0x94d049bb133111ebu;
  low ^= low >> 31;
  return noise(e, key, step, parameter) << 8 | noise(e, low, step, parameter);
}

/// a · b and a + b, rounded once to f32. Double arithmetic is exact, or its rounding is innocuous.
inline float product(float a, float b) { return static_cast<float>(double{a} * double{b}); }
inline float sum(float a, float b) { return static_cast<float>(double{a} + double{b}); }

/// Gradients of all kinds. Every 64 values have another kind, so blocks mix kinds.
inline std::vector<float> values_of_all_kinds(std::size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  unsigned kind = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 64 == 0) kind = random() % 24;
    const auto bits = static_cast<std::uint32_t>(random());
    const float usual = normal(random);
    switch (kind) {
      case 0:
        values[i] = std::bit_cast<float>(bits & 0xff7fffffu);
        break;  // any exponent
      case 1:
        values[i] = usual * 1e-38f;
        break;
      case 2:
        values[i] = std::bit_cast<float>(bits & 0x807fffffu);
        break;  // denormal
      case 3:
        values[i] = bits & 1 ? 0.0f : -0.0f;
        break;
      case 4:
        values[i] = std::copysign(3.4028235e38f, usual);
        break;
      case 5:
        values[i] = usual * 0x1p-96f;
        break;  // around the smallest scale
      case 6:
        values[i] = static_cast<float>(static_cast<int>(bits % 29) - 14) / 2;
        break;  // ties
      case 7:
        values[i] = usual * 70000;
        break;  // around the largest f16
      default:
        values[i] = usual * 1e-3f;
    }
  }
  return values;
}

/// Replaces some values by NaN or infinity.
inline void spoil(std::vector<float>& values, std::size_t every, std::mt19937_64& random) {
  const float bad[] = {std::nanf(""), INFINITY, -INFINITY, -std::nanf("")};
  for (std::size_t i = random() % every; i < values.size(); i += 1 + random() % (2 * every))
    values[i] = bad[random() % 4];
}

/// `count` values as bytes of `dtype`, starting at `offset`, with a margin of 0xab on both sides.
inline std::vector<std::byte> as_bytes(const std::vector<float>& values, Dtype dtype,
                                       std::size_t offset) {
  std::vector<std::byte> bytes(offset + values.size() * dtype_bytes(dtype) + 256, std::byte{0xab});
  for (std::size_t i = 0; i < values.size(); ++i) store(values[i], bytes.data() + offset, dtype, i);
  return bytes;
}

/// Runs the test with one instruction set.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa) { force_isa(isa); }
  ~ForcedIsa() { force_isa(std::nullopt); }
};

}  // namespace tersor::reference
