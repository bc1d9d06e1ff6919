// The module `tersor._core`: the library's classes under their Python names. Private; the package's
// .py files are what users import.
#include "python_bindings/src/bindings.h"

#include <nanobind/nanobind.h>

NB_MODULE(_core, module) {
  using namespace tersor::python;
  nb::set_leak_warnings(false);  // what PyTorch's own objects hold lives until the process ends
  module.attr("version") = TERSOR_VERSION;
  bind_errors(module);
  bind_codec(module);
  bind_allocate(module);
  bind_transport(module);
  bind_tuner(module);
  bind_collectives(module);
  bind_reducer(module);
  bind_rules(module);
  bind_reducer_state(module);
  bind_tcp(module);
  bind_nccl(module);
  bind_server(module);
  bind_lanes(module);
}
