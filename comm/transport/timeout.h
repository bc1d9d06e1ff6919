// The error after ranks were silent for too long.
#pragma once

#include <tersor/error.h>

#include <string>

namespace tersor {

/// Ranks were silent for longer than the timeout of an operation on this rank, and the calls of the
/// ranks do not differ. Ranks that learn of the fault from another rank throw TransportError.
class TimeoutError : public TransportError {
 public:
  using TransportError::TransportError;
};

/// Throws the error with another text.
[[noreturn]] inline void rethrow_as(const std::string& what, const TransportError& error) {
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) throw TimeoutError(what);
  throw TransportError(what, error.disagreement());
}

}  // namespace tersor
