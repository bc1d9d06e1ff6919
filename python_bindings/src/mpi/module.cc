// The module `tersor._mpi` makes transports over MPI communicators. The module is separate because
// `tersor._core` works without MPI. Import `tersor._core` first for the class Transport.
#include "python_bindings/src/waiting.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <tersor/error.h>
#include <tersor/mpi.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tersor::python {
namespace {

/// May be called before MPI is initialised.
std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
    throw TransportError("MPI_Get_library_version failed");
  return {text, static_cast<std::size_t>(length)};
}

/// `address` points to the MPI_Comm in an mpi4py communicator.
std::unique_ptr<Transport> make_transport(std::uintptr_t address) {
  const MPI_Comm communicator = *reinterpret_cast<const MPI_Comm*>(address);
  return make_patient([&] { return make_mpi_transport(communicator); });
}

}  // namespace
}  // namespace tersor::python

NB_MODULE(_mpi, module) {
  using namespace tersor::python;
  module.def("library_version", &library_version,
             "Returns the version of the MPI library, also before MPI is initialised.");
  module.def("make_transport", &make_transport, nb::arg("address"),
             "Makes a transport over a communicator. A collective call.\n\n"
             "Args:\n"
             "  address: Address of the MPI_Comm in an mpi4py communicator.");
}
