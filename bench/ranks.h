// What measurements over several ranks share: gradients with a known sum, checks of what they were
// reduced to, and the times of the slowest.
#pragma once

#include <tersor/buffer.h>
#include <tersor/dtype.h>
#include <tersor/span.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "bench/fleet.h"
#include "bench/samples.h"

namespace tersor::bench {

/// A gradient for each rank, drawn from the normal distribution, and what the codec's error on
/// their sum may be. Only rank 0 knows the sum.
class RankGradients {
 public:
  /// Of all ranks, or of `only_rank` where that is in a process of its own.
  RankGradients(std::size_t count, Dtype dtype, int ranks, std::optional<int> only_rank = {});

  std::size_t count() const { return count_; }
  Dtype dtype() const { return dtype_; }
  int ranks() const { return static_cast<int>(storage_.size()); }
  ConstValueSpan of(int rank) const;
  /// The gradient of any rank, made anew.
  Buffer sample(int rank) const;
  /// Over ranks, in double.
  std::span<const double> sum() const { return sum_; }

  /// How far from `sum()` a correct allreduce may be at most, relative to it: the codec's own error
  /// on each rank's gradient and once more on the sum, all in one direction, and threefold, since
  /// random rounding differs from call to call.
  double error_limit(std::string_view codec) const;

 private:
  void add_to_sum(ConstValueSpan gradient);

  std::size_t count_;
  Dtype dtype_;
  std::vector<Buffer> storage_;  // of each rank that is here
  std::vector<double> sum_;
  double norms_ = 0;  // of all ranks' gradients, added up
};

/// Throws Error unless `actual` is the sum of the gradients to within the limit. Returns its
/// relative error.
double check_sum(const RankGradients& gradients, std::string_view codec, ConstValueSpan actual);

/// Throws Error on all ranks unless all hold the same bits.
void check_identical(Rank& rank, ConstByteSpan own, std::string_view codec);

/// Both, of what each rank ended with; rank 0 checks the sum. Returns its relative error on all.
double check_reduced(const RankGradients& gradients, Rank& rank, std::string_view codec,
                     ConstValueSpan own);

/// `per_rank[rank][iteration]`: the median over iterations of the slowest rank's time.
double median_of_slowest(std::span<const std::vector<double>> per_rank);

}  // namespace tersor::bench
