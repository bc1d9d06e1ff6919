// Transports that Python owns: their end may wait for other ranks.
#pragma once

#include "python_bindings/src/waiting.h"

#include <nanobind/nanobind.h>
#include <tersor/forwarding.h>

#include <memory>
#include <utility>

namespace tersor::python {

class PatientTransport final : public ForwardingTransport {
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
