// The library's errors as Python classes. InvalidArgumentError is also a ValueError, and
// OutOfMemoryError a MemoryError. Code without knowledge of Tersor can catch the standard classes.
#include "python_bindings/src/bindings.h"

#include <tersor/agreement.h>
#include <tersor/error.h>

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

namespace tersor::python {
namespace {

void add_attributes(nb::handle, const Error&) {}

/// The options that differ between ranks.
void add_attributes(nb::handle raised, const TransportError& error) {
  raised.attr("disagreement") = nb::cast(error.disagreement());
}

/// Also the remaining ranks and the last committed step.
void add_attributes(nb::handle raised, const RanksLostError& error) {
  add_attributes(raised, static_cast<const TransportError&>(error));
  raised.attr("members") = nb::cast(error.members());
  raised.attr("last_step") = error.last_step();
}

template <typename Exception>
void translate(const std::exception_ptr& error, void* type) {
  try {
    std::rethrow_exception(error);
  } catch (const Exception& exception) {
    const nb::handle made(static_cast<PyObject*>(type));
    const nb::object raised = made(exception.what());
    add_attributes(raised, exception);
    PyErr_SetObject(made.ptr(), raised.ptr());
  }
}

void bind_difference(nb::module_& module) {
  nb::class_<Difference>(module, "Difference", "An option with different values on two ranks.")
      .def_ro("item", &Difference::item, "A parameter's name in quotes, or an empty string.")
      .def_ro("name", &Difference::name, "Name of the option, or an empty string.")
      .def_ro("rank", &Difference::rank, "The lower rank.")
      .def_ro("value", &Difference::value, "The value on `rank`.")
      .def_ro("other_rank", &Difference::other_rank, "The higher rank.")
      .def_ro("other_value", &Difference::other_value, "The value on `other_rank`.")
      .def("__repr__", [](const Difference& self) {
        return "Difference(" + tersor::text_of(std::vector<Difference>{self}) + ")";
      });
}

/// Python tries the newest translator first, so the base class of all errors must be bound first.
template <typename Exception>
nb::object bind_error(nb::module_& module, const char* name, nb::handle bases, const char* text) {
  nb::object type = nb::exception<Exception>(module, name, bases);
  nb::register_exception_translator(&translate<Exception>, type.ptr());
  type.attr("__doc__") = text;
  return type;
}

}  // namespace

void bind_errors(nb::module_& module) {
  const nb::object error = bind_error<Error>(module, "Error", PyExc_RuntimeError,
                                             "The base class of all errors raised by Tersor.");
  const auto both = [&](PyObject* builtin) { return nb::make_tuple(error, nb::handle(builtin)); };
  bind_error<InvalidArgumentError>(
      module, "InvalidArgumentError", both(PyExc_ValueError),
      "An argument is invalid: a name, option, count, dtype or array. The call changed nothing.");
  bind_error<WireError>(module, "WireError", error,
                        "A received frame is truncated, damaged, from another format version, or "
                        "does not match the call.");
  bind_difference(module);
  nb::object transport_error = bind_error<TransportError>(
      module, "TransportError", error,
      "A rank left, is late, or made another call, or the ranks cannot connect. The transport is "
      "aborted afterwards: every later call raises TransportError with the first cause. "
      "`disagreement` lists every option that differs between two ranks.");
  transport_error.attr("disagreement") = nb::cast(std::vector<Difference>());
  bind_error<AddressError>(module, "AddressError", transport_error,
                           "This rank cannot listen at its address.");
  nb::object loss =
      bind_error<RanksLostError>(module, "RanksLostError", module.attr("TransportError"),
                                 "Ranks of an elastic reducer were lost or late. `members` lists "
                                 "the remaining ranks, numbered as when the reducer was "
                                 "made. `last_step` is the number of completed steps, "
                                 "equal on all remaining ranks. Call `resume()` on all "
                                 "remaining ranks to continue.");
  loss.attr("members") = nb::cast(std::vector<int>());
  loss.attr("last_step") = 0;
  bind_error<CudaError>(
      module, "CudaError", error,
      "CUDA reported an error, or the call needs CUDA and this build or machine has none.");
  bind_error<OutOfMemoryError>(
      module, "OutOfMemoryError", both(PyExc_MemoryError),
      "An allocation failed. The message gives the number of bytes and the memory.");
}

}  // namespace tersor::python
