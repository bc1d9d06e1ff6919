// Samples the current p for a threshold almost surely a little below the k-th key. Private to
// kernels/topk.
#pragma once

#include "kernels/topk/cpu_plan.h"

#include <tersor/threads.h>

namespace tersor::kernels {

/// A stratified sample: one group of neighbouring values at a jittered offset in each equal
/// stratum.
class TopkSample {
 public:
  /// Reads the sample into the workspace and keeps the sample there.
  TopkSample(const TopkScan& source, const TopkPlan& plan, const TopkWorkspace& workspace,
             Threads& threads);

  /// Returns the thresholds for this step from order statistics (topk_sample_rank). Without
  /// samples, all three are the smallest key. `scale` multiplies the ranks. Tests pass a
  /// value other than 1 to force a miss.
  TopkThresholds thresholds(double scale);

  /// Returns a better threshold after `reached` keys reached the previous threshold. The rank in
  /// the sample is rescaled by the observed error. Call at most once.
  std::uint32_t threshold_after(std::size_t reached);

 private:
  void read(std::size_t task);
  std::size_t begin_of(std::size_t group) const;
  void prefetch(std::size_t group) const;
  void collect_top(double rank);
  std::uint32_t key_at(double rank);

  const TopkPlan& plan_;
  const TopkWorkspace& workspace_;
  TopkScan source_;
  std::size_t groups_;
  double rank_ = 0;  // of the threshold
  std::uint32_t top_key_ = 0;
  std::size_t top_count_ = 0;
};

}  // namespace tersor::kernels
