// Binds ReducerOptions.
#include "python_bindings/src/arrays.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"

#include <tersor/reducer.h>

#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace tersor::python {
namespace {

using Rule = std::pair<std::string, std::string>;                   // pattern and spec
using Phase = std::tuple<std::string, std::string, std::uint32_t>;  // pattern, spec and first step
using GivenRules = std::vector<std::variant<Rule, Phase>>;

GivenRules rules_of(const ReducerOptions& options) {
  GivenRules rules;
  for (const ReducerRule& rule : options.rules)
    if (rule.from_step == 0)
      rules.emplace_back(Rule(rule.pattern, rule.codec));
    else
      rules.emplace_back(Phase(rule.pattern, rule.codec, rule.from_step));
  return rules;
}

void set_rules(ReducerOptions& options, const GivenRules& rules) {
  options.rules.clear();
  for (const auto& one : rules) {
    const bool later = std::holds_alternative<Phase>(one);
    const auto& [pattern, codec, step] =
        later ? std::get<Phase>(one) : std::tuple_cat(std::get<Rule>(one), std::tuple(0u));
    options.rules.push_back({pattern, codec, step});
  }
}

/// A given stream implies gradients on a device. "auto" needs this information before the first
/// gradient.
void set_stream(ReducerOptions& options, nb::handle stream) {
  if (!stream.is_none()) options.memory = Memory::kDevice;
  options.stream = to_stream(stream, nb::none(), Memory::kDevice);
}

}  // namespace

void bind_reducer_options(nb::module_& module) {
  nb::class_<ReducerOptions> options(module, "ReducerOptions");
  options.def(nb::init<>())
      .def_prop_rw("rules", &rules_of, &set_rules)
      .def_rw("codec", &ReducerOptions::codec)
      .def_rw("hosts", &ReducerOptions::hosts)
      .def_rw("dims", &ReducerOptions::dims)
      .def_rw("error_growth", &ReducerOptions::error_growth)
      .def_rw("host_codec", &ReducerOptions::host_codec)
      .def_rw("bucket_bytes", &ReducerOptions::bucket_bytes)
      .def_rw("chunk_count", &ReducerOptions::chunk_count)
      .def_rw("seed", &ReducerOptions::seed)
      .def_rw("min_ranks", &ReducerOptions::min_ranks)
      .def_rw("trace", &ReducerOptions::trace)
      .def_rw("threads", &ReducerOptions::threads)
      .def_rw("auto_codecs", &ReducerOptions::auto_codecs)
      .def_rw("tuner", &ReducerOptions::tuner, nb::for_setter(nb::arg().none()),
              nb::for_setter(nb::keep_alive<1, 2>()))
      .def_prop_rw(
          "stream",
          [](const ReducerOptions& o) { return reinterpret_cast<std::uintptr_t>(o.stream.handle); },
          &set_stream);
  def_choice<&ReducerOptions::reduction>(options, "reduction");
  def_choice<&ReducerOptions::algorithm>(options, "algorithm");
  def_choice<&ReducerOptions::residual_dtype>(options, "residual_dtype");
  def_choice<&ReducerOptions::order>(options, "order");
  def_choice<&ReducerOptions::memory>(options, "memory");
  def_choice<&ReducerOptions::progress>(options, "progress");
  def_flag<&ReducerOptions::transactional, Transactional::kOff, Transactional::kOn>(
      options, "transactional");
  def_flag<&ReducerOptions::elastic, Elastic::kOff, Elastic::kOn>(options, "elastic");
  def_flag<&ReducerOptions::weighted, Weighted::kOff, Weighted::kOn>(options, "weighted");
  def_flag<&ReducerOptions::measure_error, MeasureError::kOff, MeasureError::kOn>(options,
                                                                                  "measure_error");
  def_flag<&ReducerOptions::checksum, Checksum::kOff, Checksum::kOn>(options, "checksum");
  def_timeout<&ReducerOptions::timeout>(options, "timeout");
  def_flag<&ReducerOptions::auto_learning, AutoLearning::kOff, AutoLearning::kOn>(options,
                                                                                  "auto_learning");
}

}  // namespace tersor::python
