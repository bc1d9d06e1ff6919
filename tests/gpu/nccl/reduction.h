// An allreduce on CPU threads and on a device over NCCL.
#pragma once

#include "tests/gpu/device_memory.h"
#include "tests/gpu/nccl/ranks.h"

#include <tersor/buffer.h>
#include <tersor/collectives.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tersor::test {

using Bytes = std::vector<std::byte>;

struct Reduction {
  std::string codec;
  Algorithm algorithm = Algorithm::kTwoShot;
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;
  std::vector<int> hosts = {};  ///< for the hierarchical algorithm
  std::uint64_t seed = 0;       ///< of the gradients

  std::string text() const;
  bool has_feedback() const { return codec.ends_with("+ef"); }
  /// The gradient of a rank, equal in every process.
  Bytes gradient(int rank) const;
  CollectiveOptions options() const;
};

/// The results of calls 1, 2, … on every rank, with the same gradients. Feedback makes the results
/// differ.
std::vector<Bytes> reduced_on_cpu(const Reduction& reduction, int ranks, int calls = 1);

/// The calls of one rank on a device.
class DeviceReduction {
 public:
  DeviceReduction(const Reduction& reduction, Transport& transport, const Stream& stream);

  /// Redraws the gradients.
  void draw(std::uint64_t seed);
  /// Queues a copy of the gradient and the call.
  void call();
  /// Waits. Throws Error unless the result of the last call equals `expected` bitwise.
  void require_bits(const Bytes& expected);
  /// Like require_bits, for f32 after an aborted call: values may be NaN, and at least one value
  /// is.
  void require_bits_or_nan(const Bytes& expected);
  CollectiveOptions& options() { return options_; }

 private:
  void make_state();

  Reduction reduction_;
  Transport& transport_;
  const Stream& stream_;
  Buffer input_, values_, residual_, owner_residual_, words_;
  CollectiveState state_;
  CollectiveWorkspace workspace_;
  CollectiveOptions options_;
};

}  // namespace tersor::test
