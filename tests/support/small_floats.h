// Floats of four and eight bits for tests, from the definitions of the OCP formats: a list of
// values, and a search for the nearest.
#pragma once

#include "tests/support/reference.h"

#include <cmath>
#include <cstdint>
#include <vector>

namespace tersor::test {

struct SmallFloat {
  int exponent_bits, digits, bias;
  unsigned nans;  // first magnitude of an infinity or a NaN

  double value(unsigned code) const {
    const unsigned magnitude = code & (sign() - 1);
    const int exponent = static_cast<int>(magnitude >> digits);
    const auto fraction = static_cast<double>(magnitude & ((1u << digits) - 1)) / (1 << digits);
    double value =
        exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    if (magnitude >= nans) value = digits == 2 && magnitude == nans ? INFINITY : NAN;
    return (code & sign()) != 0 ? -value : value;
  }

  /// The nearest code, the even one of two, with the given sign.
  unsigned nearest(double wanted, bool is_negative) const {
    unsigned best = 0;
    for (unsigned code = 1; code < nans; ++code) {
      const double distance = std::fabs(std::fabs(wanted) - value(code));
      const double least = std::fabs(std::fabs(wanted) - value(best));
      if (distance < least || (distance == least && code % 2 == 0)) best = code;
    }
    return is_negative ? best | sign() : best;
  }

 private:
  unsigned sign() const { return 1u << (exponent_bits + digits); }
};

inline constexpr SmallFloat kE4m3{4, 3, 7, 0x7f};
inline constexpr SmallFloat kE5m2{5, 2, 15, 0x7c};
inline constexpr SmallFloat kE2m1{2, 1, 1, 8};

/// Gradients with all cases of a block: tiny, huge, mixed, few bits (so that ties are common),
/// zeros of both signs.
inline std::vector<float> small_float_values(std::size_t count, std::uint64_t seed) {
  std::vector<float> values = gaussian(count, seed);
  for (std::size_t i = 0; i < count; ++i) {
    const int random = static_cast<int>(mixed(i + seed) % 40);
    switch (i / 32 % 10) {
      case 1:
        values[i] = std::ldexp(values[i], -145);
        break;
      case 2:
        values[i] = std::ldexp(values[i], 120);
        break;
      case 3:
        values[i] = std::ldexp(values[i], random - 30);
        break;
      case 4:
        values[i] = std::ldexp(static_cast<float>(random - 20), random % 7);
        break;
      case 5:
        values[i] = std::ldexp(values[i], -116 - random);
        break;
      case 6:
        values[i] = i % 3 == 0 ? 0.0f : -0.0f;
        break;
      case 7:
        values[i] = std::ldexp(static_cast<float>(random - 20), -random);
        break;
      case 8:
        values[i] = i % 32 == 0 ? 511.0f : values[i];
        break;
      default:
        break;
    }
  }
  return values;
}

}  // namespace tersor::test
