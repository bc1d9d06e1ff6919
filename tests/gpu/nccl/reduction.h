// An allreduce that is done twice: by threads on the CPU, and on a device over NCCL.
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
  std::vector<int> hosts = {};  ///< for hierarchical
  std::uint64_t seed = 0;       ///< of the gradients

  std::string text() const;
  bool has_feedback() const { return codec.ends_with("+ef"); }
  /// The gradient of a rank: the same wherever it is asked for.
  Bytes gradient(int rank) const;
  CollectiveOptions options() const;
};

/// What every rank holds after call number 1, 2, … of the same gradients: feedback makes them
/// differ.
std::vector<Bytes> reduced_on_cpu(const Reduction& reduction, int ranks, int calls = 1);

/// One rank's calls on a device.
class DeviceReduction {
 public:
  DeviceReduction(const Reduction& reduction, Transport& transport, const Stream& stream);

  /// Other gradients from here on.
  void draw(std::uint64_t seed);
  /// Queues a fresh copy of the gradient and the call.
  void call();
  /// Waits; throws Error unless what came of the last call has these bits.
  void require_bits(const Bytes& expected);
  /// The same after a call that was stopped, of f32: values may be NaN, and some are.
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
