// The supported algorithms, and the fastest two-shot grid. See model.h.
#include "comm/collectives/grid.h"
#include "comm/collectives/parts.h"
#include "comm/tuning/model.h"

#include <utility>

namespace tersor {
namespace {

// Maximum relative duration: a dimension costs a quantization.
constexpr double kMaxRelativeDuration = 0.95;

}  // namespace

std::vector<Algorithm> possible_algorithms(const Codec& codec, Dtype dtype) {
  const Segment segment{.count = kUnit};
  const Plan plan = codec.plan({.segments = {&segment, 1}, .dtype = dtype});
  std::vector<Algorithm> algorithms;
  for (const Exchange exchange : plan.rounds.back().exchanges) {
    if (exchange == Exchange::kNativeSum) algorithms.push_back(Algorithm::kNative);
    if (exchange == Exchange::kTwoShot) algorithms.push_back(Algorithm::kTwoShot);
    if (exchange == Exchange::kGather) algorithms.push_back(Algorithm::kOneShot);
  }
  return algorithms;
}

GridPrediction predict_on_best_grid(const CostQuery& query, const CostFigures& figures) {
  if (query.algorithm != Algorithm::kTwoShot) return {{}, predict_allreduce(query, figures)};
  if (!query.dims.empty()) return {query.dims, predict_allreduce(query, figures)};
  GridPrediction best;
  for (const Grid& grid : Grid::candidates(query.ranks, query.error_growth)) {
    CostQuery candidate = query;
    candidate.dims.assign(grid.digits().begin(), grid.digits().end());
    const Prediction prediction = predict_allreduce(candidate, figures);
    if (best.dims.empty() || prediction.seconds < kMaxRelativeDuration * best.prediction.seconds)
      best = {std::move(candidate.dims), prediction};
  }
  return best;
}

}  // namespace tersor
