// What each file here adds to the module `tersor._core`.
#pragma once

#include <nanobind/nanobind.h>

namespace tersor::python {

namespace nb = nanobind;

void bind_errors(nb::module_& module);
void bind_codec(nb::module_& module);

}  // namespace tersor::python
