// Options that several commands have, on CLI11. Values are checked, by the library's own parsers,
// before anything runs; what is wrong is answered with a list of what is right.
#pragma once

#include <tersor/dtype.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/fleet.h"

namespace tersor::bench {

/// Whether a command takes "auto" for a codec.
enum class Automatic : std::uint8_t { kRefused, kTaken };

/// --codec SPEC…; each becomes its canonical text.
CLI::Option* add_codecs(CLI::App& command, std::vector<std::string>& specs,
                        Automatic automatic = Automatic::kRefused);

/// --allow SPEC…: what codec auto may choose beside none and bf16.
CLI::Option* add_allowed(CLI::App& command, std::vector<std::string>& specs);

/// --link RATE[,LATENCY]|none
CLI::Option* add_link(CLI::App& command, std::string& link);

/// --transport NAME, --ranks N (at least 1), --link
void add_fleet(CLI::App& command, FleetOptions& fleet,
               const std::vector<std::string>& transports = transport_names());

/// --dtype f32|bf16|f16
CLI::Option* add_dtype(CLI::App& command, std::string& dtype);

/// --json FILE
CLI::Option* add_json(CLI::App& command, std::filesystem::path& file);

/// Accepts these names; an error lists them.
CLI::Validator one_of(const std::vector<std::string>& names);

/// The same check, but not shown in the help.
CLI::Validator quiet(CLI::Validator validator);

/// Numbers that take K, M, G (1024), e.g. 64K.
CLI::Validator size_suffix();

/// The seconds of a time in the units of a link's latency, or of none: 5us, 0.5s, 0.5. Throws
/// InvalidArgument that shows them.
std::string seconds_text(const std::string& time);

/// Accepts numbers of a range, which an error names.
CLI::Validator above_zero();
CLI::Validator from_to(double least, double most);

/// The gradient's dtype of a name. Throws InvalidArgument that lists them.
Dtype parse_gradient_dtype(const std::string& name);

/// The values in their order, each once.
template <typename T>
std::vector<T> without_repeats(const std::vector<T>& values) {
  std::vector<T> once;
  for (const T& value : values)
    if (std::ranges::find(once, value) == once.end()) once.push_back(value);
  return once;
}

/// A validator that puts an option's text through `parse`, which returns the text to use or throws.
template <typename Parse>
CLI::Validator checked(Parse parse, std::string type_name) {
  const auto check = [parse](std::string& text) -> std::string {
    try {
      text = parse(text);
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  return CLI::Validator(check, std::move(type_name));
}

}  // namespace tersor::bench
