// The private module `tersor._core`: the library's classes under Python names. Users import
// the package's .py files.
#include "python_bindings/src/bindings.h"

namespace {

namespace nb = nanobind;

/// Returns the compiler and the optional parts of this module, for `tersor.build_info`.
nb::dict build_info() {
  nb::dict info;
#ifdef __clang__
  info["compiler"] = "clang " __clang_version__;
#else
  info["compiler"] = "gcc " __VERSION__;
#endif
#ifdef TERSOR_HAS_CUDA
  info["cuda"] = true;
#else
  info["cuda"] = false;
#endif
#ifdef TERSOR_HAS_NCCL
  info["nccl"] = true;
#else
  info["nccl"] = false;
#endif
  return info;
}

}  // namespace

NB_MODULE(_core, module) {
  using namespace tersor::python;
  nb::set_leak_warnings(false);  // objects owned by PyTorch live until the process ends
  module.attr("version") = TERSOR_VERSION;
  module.def("build_info", &build_info);
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
