// Options that several commands have. Values are checked, by the library's own parsers,
// before anything runs; what is wrong is answered with a list of what is right.
#pragma once

#include <tersor/dtype.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/command_line.h"
#include "bench/fleet.h"

namespace tersor::bench {

/// Whether a command takes "auto" for a codec.
enum class Automatic : std::uint8_t { kRefused, kTaken };

/// --codec SPEC…; each becomes its canonical text.
Argument add_codecs(Command& command, std::vector<std::string>& specs,
                    Automatic automatic = Automatic::kRefused);

/// --allow SPEC…: what codec auto may choose beside none and bf16.
Argument add_allowed(Command& command, std::vector<std::string>& specs);

/// --transport NAME, --ranks N (at least 1), --link
void add_fleet(Command& command, FleetOptions& fleet,
               const std::vector<std::string>& transports = transport_names());

/// --dtype f32|bf16|f16
Argument add_dtype(Command& command, std::string& dtype);

/// --threads N of a codec
Argument add_codec_threads(Command& command, unsigned& threads);

/// --json FILE
Argument add_json(Command& command, std::filesystem::path& file);

/// A link as records name it. Throws InvalidArgument for text that is none.
std::string link_text(const std::string& text);

/// The seconds of a time in the units of a link's latency, or of none: 5us, 0.5s, 0.5. Throws
/// InvalidArgument that shows them.
std::string seconds_text(const std::string& time);

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

}  // namespace tersor::bench
