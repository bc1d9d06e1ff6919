// What Tersor throws. The library never prints, never aborts and never swallows an error.
#pragma once

#include <tersor/abi.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tersor {

/// The root of all errors that Tersor throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller's fault: a wrong name, option, count, dtype or pointer. Nothing was changed.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A frame that is truncated, damaged, of another version, or not what the plan says.
class WireError : public Error {
 public:
  using Error::Error;
};

/// A rank that is gone, late, or calls something else; the transport is poisoned afterwards.
class TransportError : public Error {
 public:
  using Error::Error;
};

/// A rank that is gone or late: what waited for it on a lifeline (Transport::lifeline) ended, and
/// nothing else.
class PeerLost : public TransportError {
 public:
  PeerLost(const std::string& what, int rank) : TransportError(what), rank_(rank) {}
  /// Of the lifeline; -1 where several are late, or all that any message might have come from gone.
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// Ranks of an elastic reducer (ReducerOptions::elastic) are gone. The step under way is void, on
/// all who are left: what its gradients hold is undefined; the steps before it stand.
/// GradientReducer::resume() goes on without those who are gone.
class RanksLost : public TransportError {
 public:
  RanksLost(const std::string& what, std::vector<int> members, std::uint32_t last_step)
      : TransportError(what), members_(std::move(members)), last_step_(last_step) {}
  /// Who is left, ascending: ranks of the transport that the first reducer was made with. The same
  /// on all of them, as is the number of the last step that stands: complete ones since then.
  const std::vector<int>& members() const { return members_; }
  std::uint32_t last_step() const { return last_step_; }

 private:
  std::vector<int> members_;
  std::uint32_t last_step_;
};

/// The CUDA runtime reported an error, or CUDA is asked for where there is none.
class CudaError : public Error {
 public:
  using Error::Error;
};

/// An allocation failed; the message says how many bytes and where.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

}  // namespace tersor
