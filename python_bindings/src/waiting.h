// Calls that may wait for other threads or ranks, which may need the GIL meanwhile.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <utility>

namespace tersor::python {

namespace nb = nanobind;

/// What `call` returns, with the GIL released around it.
template <typename Call>
decltype(auto) without_gil(Call&& call) {
  const nb::gil_scoped_release released;
  return std::forward<Call>(call)();
}

/// The process that something with threads was made in. A fork of it has none of them, and shares
/// its connections: there nothing may be ended, which is left to the first.
class HomeProcess {
 public:
  bool left() const { return getpid() != id_; }

 private:
  pid_t id_ = getpid();
};

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

/// Something that is made without the GIL, too.
template <typename T, typename... Arguments>
std::shared_ptr<T> make_without_gil(Arguments&&... arguments) {
  return ended_without_gil(
      without_gil([&] { return std::make_unique<T>(std::forward<Arguments>(arguments)...); }));
}

}  // namespace tersor::python
