// Functions to add the classes of each source file to the module `tersor._core`, and the
// conversions of standard types. Without a conversion, a source compiles but raises std::bad_cast
// when Python calls it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

namespace tersor::python {

namespace nb = nanobind;

void bind_errors(nb::module_& module);
void bind_codec(nb::module_& module);
void bind_allocate(nb::module_& module);
void bind_transport(nb::module_& module);
void bind_tuner(nb::module_& module);
void bind_collectives(nb::module_& module);
void bind_feedback(nb::module_& module);
void bind_reducer_options(nb::module_& module);
void bind_reducer(nb::module_& module);
void bind_rules(nb::module_& module);
void bind_reducer_state(nb::module_& module);
void bind_tcp(nb::module_& module);
void bind_nccl(nb::module_& module);
void bind_server(nb::module_& module);
void bind_worker(nb::module_& module);
void bind_gossip(nb::module_& module);
void bind_accumulators(nb::module_& module);
void bind_delta(nb::module_& module);

}  // namespace tersor::python
