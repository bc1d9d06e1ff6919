#include "comm/tuning/text.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace tersor {
namespace {

std::string three_figures(double value) {
  std::array<char, 32> text{};
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

}  // namespace

std::string seconds_text(double seconds) {
  if (seconds >= 1) return three_figures(seconds) + " s";
  if (seconds >= 1e-3) return three_figures(seconds * 1e3) + " ms";
  if (seconds >= 1e-6) return three_figures(seconds * 1e6) + " us";
  return three_figures(seconds * 1e9) + " ns";
}

std::string rate_text(double seconds_per_byte) {
  if (seconds_per_byte <= 0) return "no limit";
  const double bits = 8 / seconds_per_byte;
  if (bits >= 1e9) return three_figures(bits / 1e9) + " Gbit/s";
  return three_figures(bits / 1e6) + " Mbit/s";
}

std::string percent_text(double fraction) {
  return std::to_string(std::lround(100 * fraction)) + " %";
}

}  // namespace tersor
