// Binds the Tuner of the codec "auto".
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

#include <tersor/auto.h>

#include <string_view>

namespace tersor::python {
namespace {

void bind_figures(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<LinkFigures>(module, "LinkFigures",
                          "The costs of a link for one rank while all ranks send.\n\n"
                          "Args:\n"
                          "  latency: Seconds, one way, software included.\n"
                          "  seconds_per_byte: Seconds per byte sent by a rank.\n"
                          "  seconds_per_message: Seconds per message.\n"
                          "  core_seconds_per_byte: CPU seconds per byte.")
      .def(nb::init<double, double, double, double>(), "latency"_a = 0.0,
           "seconds_per_byte"_a = 0.0, "seconds_per_message"_a = 0.0,
           "core_seconds_per_byte"_a = 0.0, "See the class.")
      .def_rw("latency", &LinkFigures::latency, "Seconds, one way, software included.")
      .def_rw("seconds_per_byte", &LinkFigures::seconds_per_byte,
              "Seconds per byte sent by a rank.")
      .def_rw("seconds_per_message", &LinkFigures::seconds_per_message, "Seconds per message.")
      .def_rw("core_seconds_per_byte", &LinkFigures::core_seconds_per_byte,
              "CPU seconds per byte.");
  nb::class_<AutoChoice>(module, "AutoChoice", "The codec and algorithm for a gradient.")
      .def_ro("codec", &AutoChoice::codec, "Spec of the codec.")
      .def_prop_ro(
          "algorithm", [](const AutoChoice& choice) { return text_of(choice.algorithm); },
          "The algorithm.")
      .def_ro("chunk_count", &AutoChoice::chunk_count, "Number of values per chunk.")
      .def_ro("dims", &AutoChoice::dims, "Dimensions of the grid for two-shot.");
}

void bind_automatic_options(nb::module_& module) {
  nb::class_<AutoOptions> options(module, "AutoOptions", "Options of a Tuner, equal on all ranks.");
  options.def(nb::init<>(), "Sets the defaults of all options.")
      .def_rw("codecs", &AutoOptions::codecs, "Candidate specs in addition to none and bf16.")
      .def_rw("link", &AutoOptions::link, nb::arg().none(), "LinkFigures; None: measured.")
      .def_rw("threads", &AutoOptions::threads, "Codec threads of each rank.")
      .def_rw("error_growth", &AutoOptions::error_growth,
              "Limit of a grid's squared error relative to one dimension; at least 1.");
  def_choice<&AutoOptions::memory>(options, "memory",
                                   "Memory of the gradients: \"host\" or \"device\".");
  def_timeout<&AutoOptions::timeout>(options, "timeout", "Seconds of each measurement.");
}

/// Wraps a Tuner member. The first argument is a dtype, passed as a string.
template <auto kMember, typename... Others>
auto of_dtype(Tuner& tuner, std::string_view dtype, Others... others) {
  return (tuner.*kMember)(parse_choice<Dtype>(dtype), others...);
}

AutoChoice predict(Tuner& tuner, std::string_view dtype, std::size_t count) {
  return tuner.predict(parse_choice<Dtype>(dtype), count);
}

}  // namespace

void bind_tuner(nb::module_& module) {
  using namespace nb::literals;
  using NoGil = nb::call_guard<GilReleased>;
  bind_figures(module);
  bind_automatic_options(module);
  nb::class_<Tuner>(module, "Tuner",
                    "Chooses codec, algorithm and chunk length for each gradient of a transport.")
      .def(nb::init<Transport&, AutoOptions>(), "transport"_a, "options"_a, NoGil(),
           nb::keep_alive<1, 2>(),
           "Measures the link and the codecs. A collective call.\n\n"
           "Args:\n"
           "  transport: Connects the ranks.\n"
           "  options: AutoOptions, equal on all ranks.\n\n"
           "Raises:\n"
           "  InvalidArgumentError: An option is invalid.")
      .def("choose", &of_dtype<&Tuner::choose, std::size_t>, "dtype"_a, "count"_a, NoGil(),
           "Returns the AutoChoice for the next allreduce. The first call for a dtype is "
           "collective.\n\n"
           "Args:\n"
           "  dtype: \"f32\", \"bf16\" or \"f16\".\n"
           "  count: Number of values.")
      .def("record", &of_dtype<&Tuner::record, std::size_t, double>, "dtype"_a, "count"_a,
           "seconds"_a, NoGil(),
           "Records the time of an allreduce with the result of choose(). All ranks call record() "
           "after each allreduce.\n\n"
           "Args:\n"
           "  dtype, count: As in choose().\n"
           "  seconds: Duration of the allreduce on this rank.")
      .def("settled", &of_dtype<&Tuner::settled, std::size_t>, "dtype"_a, "count"_a,
           "Returns True once the tuner tries no other codec for these gradients.\n\n"
           "Args:\n"
           "  dtype, count: As in choose().")
      .def("predict", &predict, "dtype"_a, "count"_a, NoGil(),
           "Returns the AutoChoice of the cost model without trials. The first call for a dtype is "
           "collective.\n\n"
           "Args:\n"
           "  dtype, count: As in choose().")
      .def_prop_ro("link", &Tuner::link, nb::rv_policy::copy,
                   "The figures of the link: measured, or given in the options.")
      .def("explain", &Tuner::explain,
           "Returns every alternative with the predicted and measured times and the reason of the "
           "decision, as text.");
}

}  // namespace tersor::python
