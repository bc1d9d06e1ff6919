// A threshold that is almost surely a little below the k-th key, from a sample of this step's p.
// Inside kernels/topk only.
#pragma once

#include "kernels/topk/cpu_plan.h"

#include <tersor/threads.h>

namespace tersor::kernels {

/// The sample: groups of neighbouring values, one at a jittered place of each of equal strata.
class TopkSample {
 public:
  /// Reads the sample into the workspace, where it stays.
  TopkSample(const TopkScan& source, const TopkPlan& plan, const TopkWorkspace& workspace,
             Threads& threads);

  /// The ladder for this step, by order statistics (topk_sample_rank). Where nothing was sampled,
  /// the smallest key thrice. `scale` multiplies the ranks: 1, unless the threshold is to miss.
  TopkLadder ladder(double scale);

  /// A better threshold after one that `reached` keys reached: the sample's ranks are stretched by
  /// what it was wrong. To be used once.
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
