// See hadamard_reference.h.

#include "tests/support/hadamard_reference.h"

#include "tests/support/reference.h"

#include <tersor/align.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tersor::test {
namespace {

constexpr float kSteps[] = {0, 1.5957691f, 0.9956867f, 0.58601943f, 0.33520061f};

void transform(RotatedBlock& x) {
  for (std::size_t h = 1; h < kRotatedValues; h *= 2)
    for (std::size_t i = 0; i < kRotatedValues; ++i) {
      if ((i & h) != 0) continue;
      const float a = x[i], b = x[i + h];
      x[i] = a + b;
      x[i + h] = a - b;
    }
}

float tree_sum(RotatedBlock s) {
  for (std::size_t h = kRotatedValues / 2; h != 0; h /= 2)
    for (std::size_t i = 0; i < h; ++i) s[i] = s[i] + s[i + h];
  return s[0];
}

float middle(unsigned bits) { return static_cast<float>(1u << (bits - 1)) - 0.5f; }

/// The scale s of a block in rotated space, as bf16.
std::uint16_t own_scale(unsigned bits, RotatedBlock y) {
  for (float& value : y) value = bits == 1 ? std::fabs(value) : value * value;
  const float sum = tree_sum(y);
  const float s = bits == 1 ? 2 * sum * 0x1p-8f : std::sqrt(sum * 0x1p-8f) * kSteps[bits];
  return narrow(s, Dtype::kBf16);
}

std::uint8_t code_of(unsigned bits, float y, float inverse) {
  if (bits == 1) return std::signbit(y) ? 0 : 1;
  const float most = static_cast<float>((1u << bits) - 1);
  float z = std::fma(y, inverse, middle(bits));
  z = std::min(std::max(z, 0.0f), most);
  const volatile float rounded = z + 0x1p23f;
  return static_cast<std::uint8_t>(rounded - 0x1p23f);
}

class Coder {
 public:
  Coder(const HadamardTask& task, const std::vector<float>& p,
        const std::vector<float>& old_residual)
      : task_(task), p_(p), old_(old_residual) {}

  HadamardCoded run() {
    for (std::size_t first = 0; first < p_.size(); first += kRotatedValues) code_block(first);
    return std::move(coded_);
  }

 private:
  void code_block(std::size_t first) {
    const std::size_t end = std::min(first + kRotatedValues, p_.size());
    float absmax = 0;
    for (std::size_t i = first; i < end; ++i)
      if (!(std::fabs(p_[i]) <= absmax)) absmax = std::fabs(p_[i]);
    bool poisoned = false;
    for (std::size_t i = first; i < end; ++i) poisoned |= !(std::fabs(p_[i]) < 0x1p120f);
    coded_.codes.emplace_back();
    if (poisoned) return poison(first, end);
    if (absmax < 0x1p-100f) {
      coded_.scales.push_back(0);
      coded_.residual.insert(coded_.residual.end(), p_.begin() + first, p_.begin() + end);
      return;
    }
    code_ordinary(first, end, std::ilogb(absmax));
  }

  void poison(std::size_t first, std::size_t end) {
    coded_.scales.push_back(0x7fc0);
    for (std::size_t i = first; i < end; ++i) {
      coded_.overflows += std::isfinite(p_[i]);
      coded_.residual.push_back(old_.empty() ? 0.0f : old_[i]);
    }
  }

  void code_ordinary(std::size_t first, std::size_t end, int exponent) {
    const auto signs = block_signs(task_, first / kRotatedValues);
    RotatedBlock y;
    for (std::size_t i = 0; i < kRotatedValues; ++i) {
      const float p = first + i < end ? p_[first + i] : 0.0f;
      y[i] = (signs[i] ? -p : p) * std::ldexp(1.0f, -exponent - 4);
    }
    transform(y);
    const std::uint16_t s = own_scale(task_.bits, y);
    const float inverse = 1.0f / widen(s, Dtype::kBf16);
    for (std::size_t i = 0; i < kRotatedValues; ++i)
      coded_.codes.back()[i] = code_of(task_.bits, y[i], inverse);
    const float sent = std::ldexp(widen(s, Dtype::kBf16), exponent);
    coded_.scales.push_back(narrow(sent, Dtype::kBf16));
    leave(first, end);
  }

  void leave(std::size_t first, std::size_t end) {
    HadamardTask task = task_;
    task.first_index += first;
    HadamardCoded own;
    own.scales = {coded_.scales.back()};
    own.codes = {coded_.codes.back()};
    const std::vector<float> decoded = hadamard_sum(task, {&own, 1}, end - first, 1.0f);
    for (std::size_t i = first; i < end; ++i) coded_.residual.push_back(p_[i] - decoded[i - first]);
  }

  const HadamardTask& task_;
  const std::vector<float>& p_;
  const std::vector<float>& old_;
  HadamardCoded coded_;
};

}  // namespace

std::array<bool, kRotatedValues> block_signs(const HadamardTask& task, std::size_t block) {
  const std::uint64_t c = task.first_index + block * kRotatedValues;
  std::array<bool, kRotatedValues> signs;
  for (std::size_t i = 0; i < kRotatedValues; ++i) {
    const std::uint64_t key = 0x6861646d61726421u + i / 128;
    const auto words = philox7({static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(c >> 32),
                                task.step, task.parameter},
                               key);
    signs[i] = (words[i / 32 % 4] >> i % 32 & 1) != 0;
  }
  return signs;
}

HadamardCoded hadamard_coded(const HadamardTask& task, const std::vector<float>& p,
                             const std::vector<float>& old_residual) {
  return Coder(task, p, old_residual).run();
}

std::vector<std::byte> hadamard_payload(const HadamardTask& task, const HadamardCoded& coded) {
  const std::size_t blocks = coded.scales.size();
  const std::size_t planes = align_up(blocks * 2, 16);
  std::vector<std::byte> bytes(planes + blocks * task.bits * 32);
  if (blocks != 0) std::memcpy(bytes.data(), coded.scales.data(), blocks * 2);
  for (std::size_t block = 0; block < blocks; ++block)
    for (std::size_t plane = 0; plane < task.bits; ++plane)
      for (std::size_t i = 0; i < kRotatedValues; ++i) {
        const unsigned bit = coded.codes[block][i] >> plane & 1u;
        bytes[planes + (block * task.bits + plane) * 32 + i / 8] |=
            static_cast<std::byte>(bit << i % 8);
      }
  return bytes;
}

std::vector<float> hadamard_sum(const HadamardTask& task, std::span<const HadamardCoded> payloads,
                                std::size_t count, float factor) {
  std::vector<float> sum(count);
  for (std::size_t first = 0; first < count; first += kRotatedValues) {
    const std::size_t block = first / kRotatedValues;
    RotatedBlock w = {};
    for (const HadamardCoded& payload : payloads) {
      const float product = widen(payload.scales[block], Dtype::kBf16) * factor;
      const float unit = product * 0x1p-4f;
      for (std::size_t i = 0; i < kRotatedValues; ++i) {
        const float k = static_cast<float>(payload.codes[block][i]) - middle(task.bits);
        w[i] = &payload == payloads.data() ? k * unit : std::fma(k, unit, w[i]);
      }
    }
    transform(w);
    const auto signs = block_signs(task, block);
    for (std::size_t i = first; i < std::min(first + kRotatedValues, count); ++i)
      sum[i] = signs[i - first] ? -w[i - first] : w[i - first];
  }
  return sum;
}

}  // namespace tersor::test
