// What measurements over several ranks share: gradients with a known sum, and a place where the
// ranks, threads of this process, meet between two calls.
#pragma once

#include <tersor/buffer.h>
#include <tersor/dtype.h>
#include <tersor/span.h>

#include <barrier>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "bench/samples.h"

namespace tersor::bench {

/// Where ranks meet. A rank that throws leaves, so that the others do not wait for it: the
/// transport tells them why.
class Meeting {
 public:
  explicit Meeting(int ranks) : barrier_(ranks) {}

  /// One rank's part in it.
  class Member {
   public:
    explicit Member(Meeting& meeting) : barrier_(meeting.barrier_) {}
    ~Member() { barrier_.arrive_and_drop(); }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    /// Returns once all ranks are here.
    void meet() { barrier_.arrive_and_wait(); }

   private:
    std::barrier<>& barrier_;
  };

 private:
  std::barrier<> barrier_;
};

/// A gradient for each rank, drawn from the normal distribution, and what the codec's error on
/// their sum may be.
class RankGradients {
 public:
  RankGradients(std::size_t count, Dtype dtype, int ranks);

  std::size_t count() const { return sum_.size(); }
  Dtype dtype() const { return dtype_; }
  int ranks() const { return static_cast<int>(storage_.size()); }
  ConstValueSpan of(int rank) const;
  /// Over ranks, in double.
  std::span<const double> sum() const { return sum_; }

  /// How far from `sum()` a correct allreduce may be at most, relative to it: the codec's own error
  /// on each rank's gradient and once more on the sum, all in one direction, and threefold, since
  /// random rounding differs from call to call.
  double error_limit(std::string_view codec) const;

 private:
  Dtype dtype_;
  std::vector<Buffer> storage_;
  std::vector<double> sum_;
};

/// Throws Error unless `actual` is the sum of the gradients to within the limit. Returns its
/// relative error.
double check_sum(const RankGradients& gradients, std::string_view codec, ConstValueSpan actual);

/// Throws Error unless all ranks hold the same bits.
void check_identical(std::span<const ConstByteSpan> of_ranks, std::string_view codec);

/// `per_rank[rank][iteration]`: the median over iterations of the slowest rank's time.
double median_of_slowest(std::span<const std::vector<double>> per_rank);

/// How many iterations fill about a second, but at least 5 and at most 200.
std::size_t iterations_for(double seconds);

}  // namespace tersor::bench
