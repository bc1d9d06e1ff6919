// Transports that Python owns: their end may wait for other ranks.
#pragma once

#include "python_bindings/src/waiting.h"

#include <nanobind/nanobind.h>
#include <tersor/forwarding.h>

#include <memory>
#include <utility>

namespace tersor::python {

/// Shares what ends without the GIL, whoever ends it: other threads may need it meanwhile.
template <typename T>
std::shared_ptr<T> ended_without_gil(std::unique_ptr<T> value) {
  return {value.release(), [home = HomeProcess()](T* last) {
            if (home.left()) return;
            const nb::gil_scoped_acquire held;  // or else there is none to release
            const nb::gil_scoped_release released;
            delete last;
          }};
}

/// A transport that ends so.
class PatientTransport : public ForwardingTransport {
 public:
  explicit PatientTransport(std::unique_ptr<Transport> inner)
      : ForwardingTransport(ended_without_gil(std::move(inner))) {}
};

/// The transport that `make` returns, made without the GIL, too.
template <typename Make>
std::unique_ptr<Transport> make_patient(Make&& make) {
  return std::make_unique<PatientTransport>(without_gil(std::forward<Make>(make)));
}

}  // namespace tersor::python
