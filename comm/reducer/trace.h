// The trace of a reducer, and the file that it becomes.
#pragma once

#include "comm/collectives/trace.h"
#include "comm/reducer/parameters.h"

#include <chrono>
#include <filesystem>

namespace tersor {

/// What the sender and the trainer did, each in a ring of its own: the first records without a
/// lock, the second with the step's.
class ReducerTrace {
 public:
  /// "trace.json" is "trace.rank3.json" on rank 3, and "trace.2.rank3.json" of the second reducer
  /// that has it at the same time. Throws InvalidArgument where it cannot be written.
  ReducerTrace(const std::filesystem::path& path, int rank, const Parameters& parameters);
  /// Writes.
  ~ReducerTrace();
  ReducerTrace(const ReducerTrace&) = delete;
  ReducerTrace& operator=(const ReducerTrace&) = delete;

  /// Chrome's format, in place of what stood there: a row for the trainer, one for the wire, one
  /// for each parameter. Times are of the system's clock. With the step locked. Throws Error where
  /// that fails.
  void write() const;

  TraceRing sender{std::size_t{1} << 16};
  TraceRing trainer{std::size_t{1} << 14};

 private:
  const std::filesystem::path file_;
  const int rank_;
  const Parameters& parameters_;
  const std::chrono::nanoseconds epoch_;  ///< of the steady clock on the system's
};

}  // namespace tersor
