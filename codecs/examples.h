// What a codec's options may be, read from its help: for whoever tries all that the registry's
// codecs can do.
#pragma once

#include <tersor/codec.h>

#include <span>
#include <string>
#include <vector>

namespace tersor::encoding {

/// The values that an option's help names; of a number some shares of its largest.
struct OptionValues {
  std::string key;
  bool is_number = false;
  std::vector<std::string> values;
};

/// By the codec's keys: "rounding=nearest|stochastic (nearest)", "density=(0, 1] (0.01)".
std::vector<OptionValues> option_values(const CodecInfo& codec, std::span<const double> shares);

}  // namespace tersor::encoding
