// What each file here adds to the module `tersor._core`.
#pragma once

#include <nanobind/nanobind.h>

namespace tersor::python {

namespace nb = nanobind;

void bind_errors(nb::module_& module);
void bind_codec(nb::module_& module);
void bind_allocate(nb::module_& module);
void bind_transport(nb::module_& module);
void bind_tuner(nb::module_& module);
void bind_collectives(nb::module_& module);
void bind_reducer_options(nb::module_& module);
void bind_reducer(nb::module_& module);
void bind_rules(nb::module_& module);
void bind_reducer_state(nb::module_& module);
void bind_tcp(nb::module_& module);
void bind_nccl(nb::module_& module);
void bind_server(nb::module_& module);
void bind_lanes(nb::module_& module);

}  // namespace tersor::python
