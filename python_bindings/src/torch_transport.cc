// A process group of PyTorch as a transport of host memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>
#include <tersor/forwarding.h>

#include <memory>
#include <utility>
#include <vector>

#include "comm/transport/host/host_transport.h"
#include "python_bindings/src/bindings.h"
#include "python_bindings/src/patient_transport.h"
#include "python_bindings/src/torch_wire.h"

namespace tersor::python {
namespace {

/// A world that is made and ended without the GIL, which its threads need, whoever ends it.
std::shared_ptr<host::World> make_world(std::unique_ptr<Wire> wire) {
  return ended_without_gil(
      without_gil([&] { return std::make_unique<host::World>(std::move(wire)); }));
}

class TorchTransport final : public PatientTransport {
 public:
  TorchTransport(nb::object messenger, int rank, std::vector<int> hosts)
      : TorchTransport(
            make_world(std::make_unique<TorchWire>(std::move(messenger), rank, std::move(hosts)))) {
  }

  void close() { world_->close(); }

 private:
  explicit TorchTransport(std::shared_ptr<host::World> world)
      : PatientTransport(std::make_unique<host::HostTransport>(world)), world_(std::move(world)) {}

  std::shared_ptr<host::World> world_;
};

}  // namespace

void bind_torch_transport(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<TorchTransport, Transport>(
      module, "TorchTransport", "Host memory over a process group of PyTorch: tersor.torch.group.")
      .def(nb::init<nb::object, int, std::vector<int>>(), "messenger"_a, "rank"_a, "hosts"_a)
      .def("close", &TorchTransport::close, nb::call_guard<nb::gil_scoped_release>(),
           "Says goodbye to the others and ends its threads; once. Later calls raise "
           "TransportError.");
}

}  // namespace tersor::python
