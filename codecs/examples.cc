#include "codecs/examples.h"

#include "codecs/options.h"

namespace tersor::encoding {

std::vector<OptionValues> option_values(const CodecInfo& codec, std::span<const double> fractions) {
  std::vector<OptionValues> all;
  for (const CodecOption& option : codec.options) {
    if (option.standard.empty()) continue;
    OptionValues own{.key = option.name, .is_number = option.is_number(), .values = option.words};
    for (const double fraction : fractions)
      if (own.is_number) own.values.push_back(number_text(option.most * fraction));
    all.push_back(std::move(own));
  }
  return all;
}

}  // namespace tersor::encoding
