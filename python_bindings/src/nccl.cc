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
  throw TransportError("this build of Tersor has no NCCL; install nccl.h and build Tersor again");
}
#endif

}  // namespace

void bind_nccl(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "has_nccl", [] { return kHasNccl; }, "True if this build can make an nccl_transport.");
  module.def("nccl_transport", &make_over, "meeting"_a, "timeout"_a,
             "Makes a transport for device memory over a new NCCL communicator. A collective call."
             "\n\n"
             "Args:\n"
             "  meeting: A transport of the same ranks, used only during the call.\n"
             "  timeout: Seconds for the call, and for the operations of the transport.\n\n"
             "Raises:\n"
             "  TransportError: The build has no NCCL, or a rank is late.");
}

}  // namespace tersor::python
