// The private module `tersor._core`: the library's classes under Python names. Users import
// the package's .py files.
#include "python_bindings/src/bindings.h"

NB_MODULE(_core, module) {
  using namespace tersor::python;
  nb::set_leak_warnings(false);  // objects owned by PyTorch live until the process ends
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
  bind_worker(module);
  bind_gossip(module);
  bind_accumulators(module);
}
