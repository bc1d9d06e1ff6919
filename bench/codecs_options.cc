// See codecs_options.h.

#include "bench/codecs_options.h"

#include <tersor/codec.h>

#include <algorithm>

#include "bench/planned_codec.h"

namespace tersor::bench {

bool wants_feedback(const CodecsOptions& options, const std::string& spec) {
  return options.feedback || parse_spec(spec).feedback != Feedback::kNone;
}

bool is_wanted(const CodecsOptions& options, const std::string& spec,
               const std::string& operation) {
  const auto& names = options.operations;
  if (!names.empty()) return std::ranges::find(names, operation) != names.end();
  return wants_feedback(options, spec) || !operation.starts_with("encode+feedback");
}

std::string shown_codec(const std::string& codec, const std::string& operation) {
  const bool feedback = operation.starts_with("encode+feedback") || operation == "reduce";
  return feedback ? with_feedback(codec, Feedback::kResidual) : codec;
}

}  // namespace tersor::bench
