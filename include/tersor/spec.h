// A spec names a codec, the same in C++, on the command line, in Python and in reports. Grammar:
//   name[:key=value[,key=value]…][+ef]        int8   int4:rounding=stochastic topk:density=0.01+ef
// The value of the key "result", which stands last, is a spec without +ef: the codec that the
// owners of two-shot use for the sums.        hadamard:bits=1,result=hadamard:bits=2+ef
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor {

/// Error feedback, requested by the suffix "+ef" of a spec. A later rule gets its own enumerator
/// and suffix.
enum class Feedback : unsigned char { kNone, kResidual };

/// A parsed spec. `make_codec` checks the name and the keys; this struct knows no codec.
struct CodecSpec {
  std::string name;                                          ///< name of the codec
  std::vector<std::pair<std::string, std::string>> options;  ///< pairs of key and value, as written
  Feedback feedback = Feedback::kNone;                       ///< the suffix of the spec

  /// Returns name[:key=value…][+ef] with the keys in the order of `options`.
  std::string text() const;
};

/// Parses a spec. Throws InvalidArgumentError if the spec is malformed; the message shows the
/// grammar. Thread-safe.
CodecSpec parse_spec(std::string_view text);

}  // namespace tersor
