// What Tersor throws. The library never prints, never aborts and never swallows an error.
#pragma once

#include <stdexcept>

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
