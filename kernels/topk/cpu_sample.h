// A threshold that is almost surely a little below the k-th key, from a sample of this step's p.
// Inside kernels/topk only.
#pragma once

#include "kernels/topk/cpu_plan.h"

#include <tersor/threads.h>

namespace tersor::kernels {

/// The keys at which the scan counts. A sample of p is read at jittered places of equal strata; its
/// order statistics give the threshold (topk_sample_rank), three rungs below and two above. The
/// lowest rung is always the smallest key. Where nothing is sampled, the threshold is that too.
/// `scale` multiplies all ranks: 1, unless the threshold is to miss.
TopkLadder topk_ladder(const TopkScan& source, const TopkPlan& plan,
                       const TopkWorkspace& workspace, double scale, Threads& threads);

}  // namespace tersor::kernels
