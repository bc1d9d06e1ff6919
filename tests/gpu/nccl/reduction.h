// Repeated allreduces of a gradient, on CPU threads and on a device over NCCL.
#pragma once

#include "tests/device_comm/steps.h"
#include "tests/gpu/device_memory.h"
#include "tests/gpu/nccl/ranks.h"

#include <cstdint>
#include <vector>

namespace tersor::test {

/// The calls of one rank.
class RepeatedAllreduce {
 public:
  RepeatedAllreduce(const Case& wanted, Transport& transport, const Location& location,
                    std::uint64_t seed = 0);

  /// Draws other gradients.
  void draw(std::uint64_t seed);
  /// Queues a copy of the gradient and the call.
  void call();
  Values result() const { return values_.read(); }
  /// Throws Error unless the result of the last call equals `expected` bitwise.
  void require_bits(const Values& expected) const;
  /// Like require_bits, for f32 after an aborted call: values may be NaN, and at least one value
  /// is.
  void require_bits_or_nan(const Values& expected) const;
  CollectiveOptions& options() { return options_; }

 private:
  Case wanted_;
  Transport& transport_;
  Location location_;
  PlacedValues input_, values_;
  PlacedState state_;
  CollectiveWorkspace workspace_;
  CollectiveOptions options_;
};

/// The results of calls 1, 2, … on every rank, with the same gradients. Feedback makes the results
/// differ.
std::vector<Values> reduced_on_cpu(const Case& wanted, int ranks, int calls = 1,
                                   std::uint64_t seed = 0);

}  // namespace tersor::test
