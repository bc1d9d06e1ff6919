// The possible option values of a codec, parsed from the help text. Tests and benchmarks of all
// codecs use the values.
#pragma once

#include <tersor/codec.h>

#include <span>
#include <string>
#include <vector>

namespace tersor::encoding {

/// The values in an option's help text. A number has `shares` of its maximum.
struct OptionValues {
  std::string key;
  bool is_number = false;
  std::vector<std::string> values;
};

/// Parses a codec's keys, e.g. "rounding=nearest|stochastic (nearest)" or "density=(0, 1] (0.01)".
std::vector<OptionValues> option_values(const CodecInfo& codec, std::span<const double> shares);

}  // namespace tersor::encoding
