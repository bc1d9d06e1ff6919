// How a codec is named, the same in C++, on the command line, in Python and in reports:
//   name[:key=value[,key=value]…][+ef]        int8   int4:rounding=stochastic topk:density=0.01+ef
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor {

/// Error feedback, as asked for in a spec by "+ef". Later rules get their own enumerator and
/// suffix.
enum class Feedback : unsigned char { kNone, kResidual };

/// A spec taken apart. It knows no codec: names and keys are checked by `make_codec`.
struct CodecSpec {
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;  ///< key, value, as written
  Feedback feedback = Feedback::kNone;

  /// name[:key=value…][+ef], keys in the order of `options`.
  std::string text() const;
};

/// Takes a spec apart. Throws InvalidArgument that shows the grammar where it is malformed.
CodecSpec parse_spec(std::string_view text);

}  // namespace tersor
