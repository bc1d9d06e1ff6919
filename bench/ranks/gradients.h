// Common parts of measurements over several ranks: gradients with a known sum, checks of results,
// and the times of the slowest rank.
#pragma once

#include <tersor/buffer.h>
#include <tersor/dtype.h>
#include <tersor/span.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "bench/common/samples.h"
#include "bench/ranks/fleet.h"

namespace tersor::bench {

/// A normally distributed gradient per rank, and the error limit of a codec on their sum. Only rank
/// 0 knows the sum.
class RankGradients {
 public:
  /// Makes the gradients of all ranks, or only of `only_rank` if this process has a single rank.
  RankGradients(std::size_t count, Dtype dtype, int ranks, std::optional<int> only_rank = {});

  std::size_t count() const { return count_; }
  Dtype dtype() const { return dtype_; }
  int ranks() const { return static_cast<int>(storage_.size()); }
  ConstValueSpan of(int rank) const;
  /// Makes the gradient of any rank again.
  Buffer sample(int rank) const;
  /// The sum over ranks, in double.
  std::span<const double> sum() const { return sum_; }

  /// The maximum error of a correct allreduce, relative to `sum()`. The limit is three times the
  /// codec's error on each rank's gradient plus the error on the sum, all in one direction. The
  /// factor 3 covers random rounding, which differs between calls.
  double error_limit(std::string_view codec) const;

 private:
  void add_to_sum(ConstValueSpan gradient);

  std::size_t count_;
  Dtype dtype_;
  std::vector<Buffer> storage_;  // filled for the ranks in this process
  std::vector<double> sum_;
  double norms_ = 0;  // sum of the norms of all ranks' gradients
};

/// Throws Error unless `actual` is the sum of the gradients within the limit. Returns the relative
/// error.
double check_sum(const RankGradients& gradients, std::string_view codec, ConstValueSpan actual);

/// Throws Error on all ranks unless all ranks hold the same bits.
void check_identical(Rank& rank, ConstByteSpan own, std::string_view codec);

/// Does both checks on each rank's result; rank 0 checks the sum. Returns the relative error on all
/// ranks.
double check_reduced(const RankGradients& gradients, Rank& rank, std::string_view codec,
                     ConstValueSpan own);

/// Returns the median over iterations of the slowest rank's time. Index:
/// `per_rank[rank][iteration]`.
double median_of_slowest(std::span<const std::vector<double>> per_rank);

}  // namespace tersor::bench
