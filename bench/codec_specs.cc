
#include "bench/codec_specs.h"

#include <fmt/format.h>
#include <tersor/codec.h>

#include <array>

#include "bench/arguments.h"
#include "codecs/examples.h"

namespace tersor::bench {

std::vector<std::string> all_specs() {
  constexpr std::array kShares = {0.1, 0.01, 0.001};  // shares of the maximum of a number
  std::vector<std::string> specs;
  for (const CodecInfo& codec : codecs()) {
    specs.push_back(make_codec(codec.name)->spec().text());
    for (const auto& option : encoding::option_values(codec, kShares))
      for (const std::string& value : option.values)
        specs.push_back(
            make_codec(fmt::format("{}:{}={}", codec.name, option.key, value))->spec().text());
  }
  return without_repeats(specs);
}

}  // namespace tersor::bench
