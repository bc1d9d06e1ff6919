// Example values of a codec's options, for programs that try everything that the registry's codecs
// can do.
#pragma once

#include <tersor/codec.h>

#include <span>
#include <string>
#include <vector>

namespace tersor::encoding {

/// An option's words; for a number some shares of the largest value.
struct OptionValues {
  std::string key;
  bool is_number = false;
  std::vector<std::string> values;
};

/// Numbers without a default are left out.
std::vector<OptionValues> option_values(const CodecInfo& codec, std::span<const double> fractions);

}  // namespace tersor::encoding
