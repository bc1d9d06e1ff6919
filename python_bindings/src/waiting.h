// Calls that may wait for other threads or ranks, which may need the GIL meanwhile.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <type_traits>
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

/// Owner of something that may wait when it is made and when it goes: both without the GIL.
template <typename T>
class Patient {
 public:
  template <typename... Arguments>
  requires std::is_constructible_v<T, Arguments&&...>
  explicit Patient(Arguments&&... arguments)
      : value_(without_gil(
            [&] { return std::make_unique<T>(std::forward<Arguments>(arguments)...); })) {}
  ~Patient() {
    if (home_.left()) static_cast<void>(value_.release());
    without_gil([this] { value_.reset(); });
  }
  Patient(const Patient&) = delete;
  Patient& operator=(const Patient&) = delete;

  T& operator*() const { return *value_; }
  T* operator->() const { return value_.get(); }

 private:
  HomeProcess home_;
  std::unique_ptr<T> value_;
};

}  // namespace tersor::python
