// Binds the reducer's rules for codec choices without a reducer, e.g. FSDP's reduce-scatters.
#include "comm/reducer/rules.h"

#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor::python {
namespace {

/// The codec choice of the rules for a parameter.
struct CodecChoice {
  std::string codec;
  std::string reason;
  bool feedback = false;
  bool by_value = false;
  std::vector<std::pair<std::uint32_t, std::string>> phases = {};
};

// True if the codec encodes each value independently of other values. Codecs with both a native
// sum and frames do.
bool works_by_value(const Codec& codec, Dtype dtype) {
  if (codec.has_feedback() || codec.traits().needs_shape) return false;
  const Segment segment{.count = 1};
  const Plan plan = codec.plan({.segments = {&segment, 1}, .dtype = dtype});
  const std::vector<Exchange>& exchanges = plan.rounds.front().exchanges;
  const auto offers = [&](Exchange exchange) {
    return std::find(exchanges.begin(), exchanges.end(), exchange) != exchanges.end();
  };
  return offers(Exchange::kNativeSum) && offers(Exchange::kGather);
}

CodecChoice choose_codec(const ReducerOptions& options, std::string_view name,
                         const std::vector<std::size_t>& shape, std::string_view dtype) {
  const auto [count, rows, columns] = matrix_of(shape);
  const RuleSubject subject{.name = name,
                            .count = count,
                            .rows = rows,
                            .columns = columns,
                            .dtype = parse_choice<Dtype>(dtype)};
  const RuleChoice choice = Rules(options).choose(subject);
  if (choice.automatic()) return {"auto", choice.reason_text()};
  CodecChoice told{choice.codec->spec().text(), choice.text(), choice.codec->has_feedback(),
                   works_by_value(*choice.codec, subject.dtype)};
  for (const RulePhase& phase : choice.phases)
    told.phases.emplace_back(phase.from_step, phase.codec->spec().text());
  return told;
}

}  // namespace

void bind_rules(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<CodecChoice>(module, "CodecChoice",
                          "The codec that a reducer's rules choose for one parameter.")
      .def_ro("codec", &CodecChoice::codec, "A spec, or \"auto\".")
      .def_ro("reason", &CodecChoice::reason, "Why the rules choose this codec.")
      .def_ro("feedback", &CodecChoice::feedback, "True if the codec keeps a residual.")
      .def_ro("phases", &CodecChoice::phases,
              "Pairs of the first step and the spec of each codec of a schedule; else empty.")
      .def_ro("by_value", &CodecChoice::by_value,
              "True if the codec encodes each value independently, so that parameters may share a "
              "message.");
  module.def("choose_codec", &choose_codec, "options"_a, "name"_a, "shape"_a, "dtype"_a,
             "Returns the CodecChoice of one parameter.\n\n"
             "Args:\n"
             "  options: Options of a reducer.\n"
             "  name: Name of the parameter.\n"
             "  shape: Shape of the parameter.\n"
             "  dtype: \"f32\", \"bf16\" or \"f16\".\n\n"
             "Raises:\n"
             "  InvalidArgumentError: No rule matches, or a spec is invalid.");
}

}  // namespace tersor::python
