// Options shared by several commands. The library's own parsers check all values before a run
// starts. Errors list the valid values.
#pragma once

#include <tersor/dtype.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/common/command_line.h"

namespace tersor::bench {

/// Selects whether a command accepts "auto" as a codec.
enum class Automatic : std::uint8_t { kRejected, kAccepted };

/// All codecs of the registry: the defaults, and every value of each option. A numeric option takes
/// a tenth, a hundredth and a thousandth of the maximum.
std::vector<std::string> all_specs();

/// --codec SPEC…; specs become canonical text.
void add_codecs(CLI::App& command, std::vector<std::string>& specs,
                Automatic automatic = Automatic::kRejected);

/// --allow SPEC…: the codecs available to codec auto in addition to none and bf16.
void add_allowed(CLI::App& command, std::vector<std::string>& specs);

/// --dtype f32|bf16|f16
void add_dtype(CLI::App& command, std::string& dtype);

/// --threads N for a codec
void add_codec_threads(CLI::App& command, unsigned& threads);

/// --data DATA for SampleSource
void add_data(CLI::App& command, std::string& source);

/// --json FILE
void add_json(CLI::App& command, std::filesystem::path& file);

/// Returns the canonical text of a link, as in records. Throws InvalidArgumentError for an invalid
/// link.
std::string link_text(const std::string& text);

/// Converts a time to seconds. Accepts the units of a link's latency, or no unit: 5us, 0.5s, 0.5.
/// The text of InvalidArgumentError lists these forms.
std::string seconds_text(const std::string& time);

/// Returns the gradient dtype of a name. The text of InvalidArgumentError lists the names.
Dtype parse_gradient_dtype(const std::string& name);

/// Returns the values in their order without duplicates.
template <typename T>
std::vector<T> deduplicated(const std::vector<T>& values) {
  std::vector<T> once;
  for (const T& value : values)
    if (std::ranges::find(once, value) == once.end()) once.push_back(value);
  return once;
}

}  // namespace tersor::bench
