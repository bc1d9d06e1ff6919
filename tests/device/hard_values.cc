// See hard_values.h.

#include "tests/device/hard_values.h"

#include "tests/support/codec_harness.h"

#include <cmath>
#include <limits>

namespace tersor::test {
namespace {

constexpr float kHuge = 3.4e38f;  // rounds to infinity as bf16

auto at_one(float special) {
  return
      [special](std::size_t i, std::size_t count, float x) { return i == count / 3 ? special : x; };
}

}  // namespace

const std::vector<ValueKind>& hard_values() {
  static const std::vector<ValueKind> all = {
      {"ties", [](auto, auto, float x) { return std::round(x); }},
      {"all equal", [](auto i, auto, float) { return i % 2 == 0 ? 2.5f : -2.5f; }},
      {"all zero", [](auto i, auto, float) { return i % 2 == 0 ? 0.0f : -0.0f; }},
      {"few are not zero", [](auto i, auto, float x) { return i % 97 == 0 ? x : 0.0f; }},
      {"as many as are sent", [](auto i, auto, float x) { return i % 10 == 3 ? x : 0.0f; }},
      {"a few more than are sent", [](auto i, auto, float x) { return i % 9 == 0 ? x : 0.0f; }},
      {"denormal", [](auto, auto, float x) { return x * 1e-40f; }},
      {"all magnitudes", [](auto, auto, float x) { return std::ldexp(x, int(40 * x)); }},
      {"one that is huge", at_one(1e30f)},
      {"one that bf16 cannot hold", at_one(kHuge)},
      {"NaN", at_one(std::numeric_limits<float>::quiet_NaN())},
      {"infinity", at_one(-std::numeric_limits<float>::infinity())},
      {"ascending", [](auto i, auto, float) { return static_cast<float>(i); }},
      {"descending", [](auto i, auto n, float) { return static_cast<float>(n - i); }},
      {"all large ones together",
       [](auto i, auto n, float x) { return i > n * 4 / 5 ? 9 * x : x; }}};
  return all;
}

std::vector<float> values_of(const ValueKind& kind, std::size_t count, std::uint64_t seed) {
  std::vector<float> values = gaussian(count, seed);
  for (std::size_t i = 0; i < count; ++i) values[i] = kind.value(i, count, values[i]);
  return values;
}

}  // namespace tersor::test
