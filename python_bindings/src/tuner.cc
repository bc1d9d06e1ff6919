// Binds the Tuner of the codec "auto".
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"

#include <tersor/auto.h>

#include <string_view>

namespace tersor::python {
namespace {

void bind_figures(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<LinkFigures>(module, "LinkFigures",
                          "What a link costs, as each of its ranks sees it while all of them send.")
      .def(nb::init<double, double, double, double>(), "latency"_a = 0.0,
           "seconds_per_byte"_a = 0.0, "seconds_per_message"_a = 0.0,
           "core_seconds_per_byte"_a = 0.0)
      .def_rw("latency", &LinkFigures::latency, "Seconds, one way, software included.")
      .def_rw("seconds_per_byte", &LinkFigures::seconds_per_byte, "Of what a rank sends.")
      .def_rw("seconds_per_message", &LinkFigures::seconds_per_message)
      .def_rw("core_seconds_per_byte", &LinkFigures::core_seconds_per_byte);
  nb::class_<AutoChoice>(module, "AutoChoice", "How a gradient is to travel.")
      .def_ro("codec", &AutoChoice::codec)
      .def_prop_ro("algorithm", [](const AutoChoice& choice) { return text_of(choice.algorithm); })
      .def_ro("chunk_count", &AutoChoice::chunk_count, "Values.")
      .def_ro("dims", &AutoChoice::dims, "Of two-shot.");
}

void bind_automatic_options(nb::module_& module) {
  nb::class_<AutoOptions> options(module, "AutoOptions");
  options.def(nb::init<>())
      .def_rw("codecs", &AutoOptions::codecs)
      .def_rw("link", &AutoOptions::link, nb::arg().none())
      .def_rw("threads", &AutoOptions::threads)
      .def_rw("error_growth", &AutoOptions::error_growth);
  def_choice<&AutoOptions::memory>(options, "memory");
  def_timeout<&AutoOptions::timeout>(options, "timeout");
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
  using NoGil = nb::call_guard<nb::gil_scoped_release>;
  bind_figures(module);
  bind_automatic_options(module);
  nb::class_<Tuner>(module, "Tuner")
      .def(nb::init<Transport&, AutoOptions>(), "transport"_a, "options"_a, NoGil(),
           nb::keep_alive<1, 2>())
      .def("choose", &of_dtype<&Tuner::choose, std::size_t>, "dtype"_a, "count"_a, NoGil(),
           "What the next allreduce of such a gradient should do. The first call for a dtype is a "
           "collective one.")
      .def("record", &of_dtype<&Tuner::record, std::size_t, double>, "dtype"_a, "count"_a,
           "seconds"_a, NoGil(),
           "How long the allreduce took that went as `choose` said. All ranks call it after each.")
      .def("settled", &of_dtype<&Tuner::settled, std::size_t>, "dtype"_a, "count"_a,
           "True once trying is over for such gradients.")
      .def("predict", &predict, "dtype"_a, "count"_a, NoGil(),
           "What the model alone says. The first call for a dtype is a collective one.")
      .def_prop_ro("link", &Tuner::link, nb::rv_policy::copy)
      .def("explain", &Tuner::explain,
           "Every alternative with its predicted and measured time, and why it was taken or left.");
}

}  // namespace tersor::python
