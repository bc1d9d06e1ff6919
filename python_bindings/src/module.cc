// The private module `tersor._core`: the library's classes under Python names. Users import
// the package's .py files.
#include "python_bindings/src/bindings.h"

#include <tersor/error.h>

#include <string>
#include <string_view>
#include <tuple>

#include "kernels/device/device.h"

namespace {

/// Returns the compiler, and whether this module has CUDA kernels and the NCCL transport.
std::tuple<std::string_view, bool, bool> build_info() {
#ifdef __clang__
  constexpr std::string_view kCompiler = "clang " __clang_version__;
#else
  constexpr std::string_view kCompiler = "gcc " __VERSION__;
#endif
#ifdef TERSOR_HAS_CUDA
  constexpr bool kCuda = true;
#else
  constexpr bool kCuda = false;
#endif
#ifdef TERSOR_HAS_NCCL
  constexpr bool kNccl = true;
#else
  constexpr bool kNccl = false;
#endif
  return {kCompiler, kCuda, kNccl};
}

/// Returns the name of the current device, or the reason why device memory cannot be used.
std::string gpu() try {
  tersor::kernels::require_device();
  return tersor::kernels::device_name();
} catch (const tersor::CudaError& error) {
  return error.what();
}

}  // namespace

NB_MODULE(_core, module) {
  using namespace tersor::python;
  nb::set_leak_warnings(false);  // objects owned by PyTorch live until the process ends
  module.attr("version") = TERSOR_VERSION;
  module.def("build_info", &build_info);
  module.def("gpu", &gpu);
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
  bind_delta(module);
}
