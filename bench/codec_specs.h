// The codecs of the registry, for programs that measure every codec.
#pragma once

#include <string>
#include <vector>

namespace tersor::bench {

/// All codecs of the registry: the defaults, and every value of each option. A numeric option takes
/// a tenth, a hundredth and a thousandth of the maximum.
std::vector<std::string> all_specs();

}  // namespace tersor::bench
