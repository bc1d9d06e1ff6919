#include <tersor/inprocess.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "bench/allreduce/rank.h"
#include "kernels/scalar/convert.h"

namespace tersor::bench {
namespace {

/// The distance from 1 to the next larger value.
double spacing(Dtype dtype) {
  if (dtype == Dtype::kF32) return 0x1p-23;
  return dtype == Dtype::kBf16 ? 0x1p-7 : 0x1p-10;
}

/// The smallest positive value, which is the minimum resolution of a sum.
double smallest(Dtype dtype) {
  return dtype == Dtype::kF16 ? 0x1p-24 : std::numeric_limits<float>::denorm_min();
}

/// The sum of magnitudes over ranks.
std::vector<double> magnitudes(const RankGradients& gradients) {
  std::vector<double> sum(gradients.count());
  visit_gradient_dtype(gradients.dtype(), [&]<typename T>(T) {
    for (int rank = 0; rank < gradients.ranks(); ++rank) {
      const auto values = gradients.of(rank).as<T>();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += std::abs(kernels::to_f32(values[i]));
    }
  });
  return sum;
}

}  // namespace

Buffer reduced_on_host(const RankGradients& gradients, const CollectiveCase& config) {
  Buffer result(gradients.of(0).bytes());
  make_thread_fleet(gradients.ranks(), Link{})->run([&](Rank& rank) {
    CollectiveRank caller(config, gradients.of(rank.index()), rank);
    caller.restore();
    caller.call();
    if (rank.is_rank0()) std::memcpy(result.pointer(), caller.whole().pointer(), result.bytes());
  });
  return result;
}

std::size_t count_different(ConstValueSpan expected, ConstValueSpan actual) {
  const std::size_t bytes = dtype_bytes(expected.dtype());
  std::size_t different = 0;
  for (std::size_t first = 0; first < expected.bytes(); first += bytes)
    different += std::memcmp(expected.pointer() + first, actual.pointer() + first, bytes) != 0;
  return different;
}

std::size_t count_outside(const RankGradients& gradients, Dtype rounded_to, ConstValueSpan actual) {
  // Half a spacing for the addends and for each of ranks - 1 partial sums. The bound is doubled,
  // because partial sums of rounded values may be slightly larger.
  const double roundings = gradients.ranks() * spacing(rounded_to);
  const std::vector<double> largest = magnitudes(gradients);
  std::size_t outside = 0;
  visit_gradient_dtype(actual.dtype(), [&]<typename T>(T) {
    const auto values = actual.as<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = std::abs(kernels::to_f32(values[i]) - gradients.sum()[i]);
      outside += !(error <= roundings * largest[i] + smallest(rounded_to));
    }
  });
  return outside;
}

}  // namespace tersor::bench
