// Binds the NCCL transport, if this build includes NCCL.
#include <tersor/transport.h>

#include <memory>

#include "python_bindings/src/bindings.h"
#include "python_bindings/src/choices.h"
#include "python_bindings/src/waiting.h"

#ifdef TERSOR_HAS_NCCL
#include <tersor/nccl.h>
#endif

namespace tersor::python {
namespace {

#ifdef TERSOR_HAS_NCCL
constexpr bool kHasNccl = true;

std::unique_ptr<Transport> make_over(Transport& meeting, double timeout) {
  const auto within = to_timeout(timeout);
  return make_patient(
      [&] { return make_nccl_transport(NcclCommunicator::over(meeting, within), within); });
}
#else
constexpr bool kHasNccl = false;

std::unique_ptr<Transport> make_over(Transport&, double) {
  throw TransportError("this build of Tersor has no NCCL: its header was not found");
}
#endif

}  // namespace

void bind_nccl(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "has_nccl", [] { return kHasNccl; }, "Whether this build can make an nccl_transport.");
  module.def("nccl_transport", &make_over, "meeting"_a, "timeout"_a,
             "Device memory, over a communicator of the current device among the ranks of another "
             "transport, which is not needed afterwards; a collective call.");
}

}  // namespace tersor::python
