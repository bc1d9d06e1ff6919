// See reference.h.

#include "tests/support/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace tersor::test {
namespace {

/// A 16-bit format: mantissa bits, exponent of the smallest normal number, and exponent after the
/// largest normal number.
struct Narrow {
  int digits;
  int smallest;
  int beyond;
};

Narrow format_of(Dtype dtype) {
  return dtype == Dtype::kBf16 ? Narrow{7, -126, 128} : Narrow{10, -14, 16};
}

std::uint16_t assemble(double magnitude, const Narrow& format) {
  if (magnitude >= std::ldexp(1.0, format.beyond))
    return static_cast<std::uint16_t>((format.beyond - format.smallest + 1) << format.digits);
  if (magnitude < std::ldexp(1.0, format.smallest))  // subnormal, or 0
    return static_cast<std::uint16_t>(std::ldexp(magnitude, format.digits - format.smallest));
  const int exponent = std::ilogb(magnitude);
  const double fraction = std::ldexp(magnitude, -exponent) - 1.0;
  return static_cast<std::uint16_t>((exponent - format.smallest + 1) * (1 << format.digits) +
                                    static_cast<int>(std::ldexp(fraction, format.digits)));
}

}  // namespace

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }
float from_bits(std::uint32_t value) { return std::bit_cast<float>(value); }

std::uint16_t narrow(float value, Dtype dtype) {
  if (std::isnan(value)) return 0x7fff;
  const Narrow format = format_of(dtype);
  const double magnitude = std::fabs(static_cast<double>(value));
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (magnitude == 0) return sign;
  const int exponent = std::isinf(magnitude) ? format.beyond : std::ilogb(magnitude);
  const double quantum = std::ldexp(1.0, std::max(exponent, format.smallest) - format.digits);
  return sign | assemble(std::nearbyint(magnitude / quantum) * quantum, format);
}

std::uint16_t narrow_stochastic(float value, std::uint32_t random) {
  if (!std::isfinite(value)) return narrow(value, Dtype::kBf16);
  const double magnitude = std::fabs(static_cast<double>(value));
  const Narrow format = format_of(Dtype::kBf16);
  const int exponent = magnitude == 0 ? format.smallest : std::ilogb(magnitude);
  const double quantum = std::ldexp(1.0, std::max(exponent, format.smallest) - format.digits);
  const double near = std::floor(magnitude / quantum) * quantum;
  const bool far = (magnitude - near) / quantum + random * 0x1p-16 >= 1;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  return sign | assemble(far ? near + quantum : near, format);
}

float widen(std::uint16_t value, Dtype dtype) {
  const Narrow format = format_of(dtype);
  const double sign = (value & 0x8000) != 0 ? -1.0 : 1.0;
  const int magnitude = value & 0x7fff;
  const int exponent = magnitude >> format.digits;
  const int fraction = magnitude & ((1 << format.digits) - 1);
  if (exponent > format.beyond - format.smallest)
    return fraction != 0 ? std::nanf("") : static_cast<float>(sign) * INFINITY;
  const int leading = exponent == 0 ? 0 : 1 << format.digits;
  const int power = std::max(exponent, 1) - 1 + format.smallest - format.digits;
  return static_cast<float>(sign * std::ldexp(leading + fraction, power));
}

float rounded(float value, Dtype dtype) {
  return dtype == Dtype::kF32 ? value : widen(narrow(value, dtype), dtype);
}

float decoded_as(float value, Dtype dtype) {
  const float result = rounded(value, dtype);
  const bool overflows = dtype == Dtype::kF16 && std::isinf(result) && std::isfinite(value);
  return overflows ? std::copysign(65504.0f, value) : result;
}

float with_feedback(float gradient_factor, float gradient, float residual_factor, float residual) {
  const float scaled_gradient = gradient_factor * gradient;
  const float scaled_residual = residual_factor * residual;
  return scaled_gradient + scaled_residual;
}

std::uint64_t mixed(std::uint64_t state) {
  state += 0x9e3779b97f4a7c15;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
  return state ^ (state >> 31);
}

std::array<std::uint32_t, 4> philox7(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
  for (std::uint64_t round = 0; round < 7; ++round) {
    const auto key_low = static_cast<std::uint32_t>(key + round * 0x9e3779b9);
    const auto key_high = static_cast<std::uint32_t>((key >> 32) + round * 0xbb67ae85);
    const std::uint64_t product0 = std::uint64_t{0xd2511f53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key_low,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key_high,
               static_cast<std::uint32_t>(product0)};
  }
  return counter;
}

std::uint32_t random_byte(std::uint64_t element, std::uint64_t key, std::uint32_t step,
                          std::uint32_t parameter) {
  const std::uint64_t c = element / 512 * 32 + element % 128 / 4;
  const auto words = philox7(
      {static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(c >> 32), step, parameter}, key);
  return words[element % 512 / 128] >> (8 * (element % 4)) & 0xff;
}

std::uint32_t random_bits(std::uint64_t element, std::uint64_t key, std::uint32_t step,
                          std::uint32_t parameter) {
  return 256 * random_byte(element, key, step, parameter) +
         random_byte(element, mixed(key), step, parameter);
}

std::uint64_t frame_checksum(ConstByteSpan frame) {
  constexpr std::int64_t kPrime = (std::int64_t{1} << 61) - 1;
  constexpr unsigned kRow = 16, kRows = 1024;
  const auto remainder = [](std::int64_t value) -> unsigned __int128 {
    return static_cast<std::uint64_t>(value < 0 ? value + kPrime : value);
  };
  std::uint64_t state = 1;  // of splitmix64
  const auto next = [&state] { return mixed(std::exchange(state, state + 0x9e3779b97f4a7c15u)); };
  std::vector<std::int64_t> weights(kRows);
  for (auto& weight : weights) weight = static_cast<std::int64_t>(next() >> 33) - (1 << 30);
  const std::uint64_t base = next() >> 3;
  unsigned __int128 sum = 0, powers[kRow] = {1};
  for (std::uint64_t i = 0; i < frame.size() / 4; ++i) {
    auto& power = powers[i % kRow];
    if (i != 0 && i % (kRow * kRows) < kRow) power = powers[(i - 1) % kRow] * base % kPrime;
    std::int32_t word;
    std::memcpy(&word, frame.data() + 4 * i, 4);
    if (i == 14 || i == 15) continue;  // bytes 56 to 63 hold the checksum
    sum += remainder(word) * remainder(weights[i / kRow % kRows]) % kPrime * power % kPrime;
  }
  return static_cast<std::uint64_t>(sum % kPrime);
}

namespace {

void quantize_value(const QuantizeTask& task, std::size_t index, float p, float scale,
                    Quantized& result) {
  int code = 0;
  if (scale != 0) {
    const auto inverse = static_cast<float>(1.0 / scale);
    const double ratio = static_cast<double>(p) * inverse;
    const auto noise = static_cast<int>(
        random_byte(task.first_index + index, task.key, task.step, task.parameter));
    code = task.stochastic
               ? static_cast<int>(std::floor((std::nearbyint(ratio * 256) + noise) / 256))
               : static_cast<int>(std::nearbyint(ratio));
  }
  const float decoded = static_cast<float>(code) * scale;
  result.codes[index] = code;
  result.residual[index] = p - decoded;
}

}  // namespace

Quantized quantize(const QuantizeTask& task, const std::vector<float>& p,
                   const std::vector<float>& old_residual) {
  Quantized result{{}, std::vector<int>(p.size()), std::vector<float>(p.size())};
  for (std::size_t first = 0; first < p.size(); first += task.block) {
    const std::size_t last = std::min(p.size(), first + task.block);
    double absmax = 0;
    bool poisoned = false;
    for (std::size_t i = first; i < last; ++i) {
      poisoned |= !std::isfinite(p[i]);
      absmax = std::max(absmax, std::fabs(static_cast<double>(p[i])));
    }
    auto scale = static_cast<float>(absmax * static_cast<float>(1.0 / task.levels));
    if (scale < std::ldexp(1.0, -100)) scale = 0;
    result.scales.push_back(poisoned ? std::nanf("") : scale);
    for (std::size_t i = first; i < last; ++i)
      if (poisoned)
        result.residual[i] = old_residual.empty() ? 0 : old_residual[i];
      else
        quantize_value(task, i, p[i], scale, result);
  }
  return result;
}

}  // namespace tersor::test
