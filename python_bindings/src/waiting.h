// Calls that may wait for other threads or ranks, and release the GIL meanwhile.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "comm/transport/forwarding.h"
#include "python_bindings/src/gil.h"

namespace tersor::python {

namespace nb = nanobind;

/// Releases the GIL during its lifetime.
class GilReleased {
 public:
  GilReleased() = default;
  ~GilReleased() { restore_thread(state_); }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_ = PyEval_SaveThread();
};

/// Holds the GIL during its lifetime, in any thread.
class GilHeld {
 public:
  GilHeld() = default;
  ~GilHeld() { PyGILState_Release(state_); }
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  const PyGILState_STATE state_ = ensure_gil();
};

/// Returns the result of `call`, with the GIL released during the call.
template <typename Call>
decltype(auto) without_gil(Call&& call) {
  const GilReleased released;
  return std::forward<Call>(call)();
}

/// Returns an owner for the object. The owner releases the GIL to destroy the object, because other
/// threads may need the GIL meanwhile. Only the calling process may end the object: a forked
/// process has no copies of the object's threads, but shares the connections.
template <typename T>
std::shared_ptr<T> ended_without_gil(std::unique_ptr<T> value) {
  return {value.release(), [home = getpid()](T* last) {
            if (getpid() != home) return;
            const GilHeld held;  // required before the release
            const GilReleased released;
            delete last;
          }};
}

/// Makes an object without the GIL. The returned owner is that of `ended_without_gil`.
template <typename T, typename... Arguments>
std::shared_ptr<T> make_without_gil(Arguments&&... arguments) {
  return ended_without_gil(
      without_gil([&] { return std::make_unique<T>(std::forward<Arguments>(arguments)...); }));
}

/// A transport owned by Python. The destructor may wait for other ranks.
class PatientTransport : public ForwardingTransport {
 public:
  explicit PatientTransport(std::unique_ptr<Transport> inner)
      : ForwardingTransport(ended_without_gil(std::move(inner))) {}
};

/// Returns the transport from `make`, called without the GIL.
template <typename Make>
std::unique_ptr<Transport> make_patient(Make&& make) {
  return std::make_unique<PatientTransport>(without_gil(std::forward<Make>(make)));
}

}  // namespace tersor::python
