// See collective_options.h.
#include "python_bindings/src/collective_options.h"

#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace tersor::python {

void Workspace::lend(CollectiveOptions& options, nb::handle transport) {
  transports_.add(transport);
  options.workspace = &*plans_;
  options.threads = &threads_;
}

CollectiveOptions CallOptions::resolve(nb::handle transport, CollectiveStatistics& filled) const {
  CollectiveOptions options = *this;
  options.hosts = host_of_rank;
  options.dims = grid;
  options.statistics = &filled;
  if (feedback != nullptr) options.state = &feedback->state();
  if (lent != nullptr) lent->lend(options, transport);
  return options;
}

void bind_collective_options(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Workspace>(module, "Workspace",
                        "Plans, buffers and `threads` that calls with equal arguments use again. "
                        "Not for two calls at once.")
      .def(nb::init<unsigned>(), "threads"_a = 1)
      .def_prop_ro("threads", &Workspace::threads);
  const auto keeps = nb::for_setter(nb::keep_alive<1, 2>());  // the options hold plain pointers
  nb::class_<CallOptions> options(module, "CallOptions");
  options.def(nb::init<>())
      .def_rw("codec", &CallOptions::codec)
      .def_rw("hosts", &CallOptions::host_of_rank)
      .def_rw("dims", &CallOptions::grid)
      .def_rw("error_growth", &CallOptions::error_growth)
      .def_rw("host_codec", &CallOptions::host_codec)
      .def_rw("state", &CallOptions::feedback, nb::for_setter(nb::arg().none()), keeps)
      .def_rw("workspace", &CallOptions::lent, nb::for_setter(nb::arg().none()), keeps)
      .def_rw("tuner", &CallOptions::tuner, nb::for_setter(nb::arg().none()), keeps)
      .def_rw("parameter", &CallOptions::parameter)
      .def_rw("seed", &CallOptions::seed)
      .def_rw("step", &CallOptions::step)
      .def_rw("chunk_count", &CallOptions::chunk_count);
  def_choice<&CallOptions::reduction>(options, "reduction");
  def_choice<&CallOptions::algorithm>(options, "algorithm");
  def_flag<&CallOptions::checksum, Checksum::kOff, Checksum::kOn>(options, "checksum");
  def_timeout<&CallOptions::timeout>(options, "timeout");
}

}  // namespace tersor::python
