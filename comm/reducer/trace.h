// The trace of a reducer, and its file.
#pragma once

#include "comm/collectives/trace.h"
#include "comm/reducer/parameters.h"

#include <chrono>
#include <filesystem>

namespace tersor {

/// Events of the sender and of the trainer, each in a separate ring buffer. The sender records
/// without a lock, the trainer with the step's lock.
class ReducerTrace {
 public:
  /// On rank 3, "trace.json" becomes "trace.rank3.json", or "trace.2.rank3.json" for the second
  /// reducer with this path at the same time. Throws InvalidArgumentError if the file cannot be
  /// written.
  ReducerTrace(const std::filesystem::path& path, int rank, const Parameters& parameters);
  /// Writes the file.
  ~ReducerTrace();
  ReducerTrace(const ReducerTrace&) = delete;
  ReducerTrace& operator=(const ReducerTrace&) = delete;

  /// Writes Chrome's format over an existing file: a row for the trainer, a row for the wire, and a
  /// row per parameter. Times use the system clock. Call with the step locked. Throws Error if
  /// writing fails.
  void write() const;

  TraceRing sender{std::size_t{1} << 16};
  TraceRing trainer{std::size_t{1} << 14};

 private:
  const std::filesystem::path file_;
  const int rank_;
  const Parameters& parameters_;
  const std::chrono::nanoseconds epoch_;  ///< system time at the start of the steady clock
};

}  // namespace tersor
