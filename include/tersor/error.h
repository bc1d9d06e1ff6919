// The exceptions of Tersor. The library never prints, never aborts and never swallows an error.
#pragma once

#include <tersor/abi.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tersor {

/// The base class of all exceptions that Tersor throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller passed a wrong name, option, count, dtype or pointer. The call changed nothing.
class InvalidArgumentError : public Error {
 public:
  using Error::Error;
};

/// A frame is truncated, damaged, of another version, or different from the plan.
class WireError : public Error {
 public:
  using Error::Error;
};

/// An option with different values on two ranks.
struct Difference {
  std::string item = {};  ///< the parameter's name in quotes; empty for an option of the whole call
  std::string name;       ///< "codec", "chunk_count"; empty if one rank lacks the item
  int rank = 0;           ///< the lower rank
  std::string value;      ///< on `rank`; "absent" if the option or the item is missing
  int other_rank = 0;     ///< the higher rank
  std::string other_value;  ///< on `other_rank`; "absent" as for `value`

  friend bool operator==(const Difference&, const Difference&) = default;
};

/// A rank left, is late, or makes another call. The transport is aborted afterwards.
class TransportError : public Error {
 public:
  using Error::Error;
  /// An error with the options that differ between two ranks.
  TransportError(const std::string& what, std::vector<Difference> disagreement)
      : Error(what), disagreement_(std::move(disagreement)) {}

  /// Every option that differs between two ranks. Empty if another fault ended the call.
  const std::vector<Difference>& disagreement() const { return disagreement_; }

 private:
  std::vector<Difference> disagreement_;
};

/// This rank cannot listen at its address.
class AddressError : public TransportError {
 public:
  using TransportError::TransportError;
};

/// A rank failed or is late. Only the operation that waited for this rank on an isolated channel
/// (Transport::isolated_channel) ended; all other operations continue.
class PeerLostError : public TransportError {
 public:
  /// `rank` is the lost rank, or -1.
  PeerLostError(const std::string& what, int rank) : TransportError(what), rank_(rank) {}
  /// Returns the rank in the isolated channel. Returns -1 if several ranks are late, or if all
  /// ranks that could have sent the expected message are gone.
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// Ranks of an elastic reducer (ReducerOptions::elastic) are gone or late. All remaining ranks
/// discard the current step, and its gradients are undefined. Earlier steps stay committed.
/// Call GradientReducer::resume() to continue without the lost ranks. Late ranks remain members.
class RanksLostError : public TransportError {
 public:
  /// `members` and `last_step` as returned by the functions of these names.
  RanksLostError(const std::string& what, std::vector<int> members, std::uint32_t last_step,
                 std::vector<Difference> disagreement = {})
      : TransportError(what, std::move(disagreement)),
        members_(std::move(members)),
        last_step_(last_step) {}
  /// Returns the remaining ranks, ascending, as ranks of the transport of the first reducer. The
  /// list is the same on all remaining ranks.
  const std::vector<int>& members() const { return members_; }
  /// Returns the number of committed steps since the first reducer was made. The number is the same
  /// on all remaining ranks.
  std::uint32_t last_step() const { return last_step_; }

 private:
  std::vector<int> members_;
  std::uint32_t last_step_;
};

/// The CUDA runtime reported an error, or a call needs CUDA in a build or on a machine without
/// CUDA.
class CudaError : public Error {
 public:
  using Error::Error;
};

/// An allocation failed. The message gives the number of bytes and the kind of memory.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

/// Former name of InvalidArgumentError; works for one release.
using InvalidArgument [[deprecated("use InvalidArgumentError")]] = InvalidArgumentError;
/// Former name of PeerLostError; works for one release.
using PeerLost [[deprecated("use PeerLostError")]] = PeerLostError;
/// Former name of RanksLostError; works for one release.
using RanksLost [[deprecated("use RanksLostError")]] = RanksLostError;
/// Former name of OutOfMemoryError; works for one release.
using OutOfMemory [[deprecated("use OutOfMemoryError")]] = OutOfMemoryError;

}  // namespace tersor
