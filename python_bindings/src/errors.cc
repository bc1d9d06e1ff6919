// The library's errors as Python classes. InvalidArgument is a ValueError too, OutOfMemory a
// MemoryError, so that code which knows nothing of Tersor catches what it expects.
#include "python_bindings/src/bindings.h"

#include <nanobind/nanobind.h>
#include <tersor/error.h>

namespace tersor::python {
namespace {

/// Translators are asked newest first, so the root of all errors has to be bound first.
template <typename Exception>
nb::object bind_error(nb::module_& module, const char* name, nb::handle bases, const char* text) {
  nb::object type = nb::exception<Exception>(module, name, bases);
  type.attr("__doc__") = text;
  return type;
}

}  // namespace

void bind_errors(nb::module_& module) {
  const nb::object error =
      bind_error<Error>(module, "Error", PyExc_RuntimeError, "The root of all errors of Tersor's.");
  const auto both = [&](PyObject* builtin) { return nb::make_tuple(error, nb::handle(builtin)); };
  bind_error<InvalidArgument>(
      module, "InvalidArgument", both(PyExc_ValueError),
      "The caller's fault: a wrong name, option, count, dtype or array. Nothing was changed.");
  bind_error<WireError>(
      module, "WireError", error,
      "A frame that is truncated, damaged, of another version, or not what the call says.");
  bind_error<TransportError>(
      module, "TransportError", error,
      "A rank that is gone, late, or calls something else; the transport is poisoned afterwards.");
  bind_error<CudaError>(
      module, "CudaError", error,
      "CUDA reported an error, or is asked for where this build or machine has none.");
  bind_error<OutOfMemory>(module, "OutOfMemory", both(PyExc_MemoryError),
                          "An allocation failed; the message says how many bytes and where.");
}

}  // namespace tersor::python
