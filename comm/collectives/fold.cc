#include "comm/collectives/fold.h"

#include <algorithm>

namespace tersor {
namespace {

/// The ranges of a rank's residual of `count` values in the parameter, in residual order.
std::vector<Range> residual_ranges(const ParameterFeedback& feedback, std::size_t count) {
  if (feedback.encoded_shards.empty()) return {{feedback.sender_first, count}};
  const std::size_t shard = count / feedback.encoded_shards.size();
  std::vector<Range> ranges;
  for (const int owner : feedback.encoded_shards)
    ranges.push_back({static_cast<std::size_t>(owner) * shard, shard});
  return ranges;
}

/// Calls `visit(first, offset, count)` for each part of a residual. The part starts at index
/// `first` of the parameter and at index `offset` of the residual. Only values among the first
/// `valid` of the parameter count.
template <typename Visit>
void for_each_part(const ParameterFeedback& feedback, std::size_t count, std::size_t valid,
                   const Visit& visit) {
  std::size_t offset = 0;
  for (const Range& range : residual_ranges(feedback, count)) {
    const std::size_t first = std::min(range.first, valid);
    visit(first, offset, std::min(range.count, valid - first));
    offset += range.count;
  }
}

}  // namespace

void fold_owner(std::span<const float> owner, const ParameterFeedback& feedback,
                const ResidualScales& scales, const FoldTarget& target) {
  if (owner.empty()) return;
  auto value = owner.begin();
  for (std::size_t stage = 0; stage < scales.owner.size(); ++stage) {
    const Range& range = feedback.owned.stages[stage];
    for (std::size_t i = 0; i < range.count; ++i)
      target.values[range.first - target.first + i] += scales.owner[stage] / target.unit * *value++;
  }
}

std::vector<float> folded(const RankResiduals& own, const ParameterFeedback& feedback,
                          const ResidualScales& scales, std::size_t count) {
  std::vector<float> whole(count);
  for_each_part(feedback, own.sender.size(), count,
                [&](std::size_t first, std::size_t stored, std::size_t valid) {
                  for (std::size_t i = 0; i < valid; ++i)
                    whole[first + i] = scales.sender * own.sender[stored + i];
                });
  fold_owner(own.owner, feedback, scales, {whole});
  return whole;
}

std::vector<float> residual_part(std::span<const float> whole, const ParameterFeedback& feedback,
                                 std::size_t count) {
  std::vector<float> part(count);
  for_each_part(feedback, count, whole.size(),
                [&](std::size_t first, std::size_t stored, std::size_t valid) {
                  std::copy_n(whole.data() + first, valid, part.data() + stored);
                });
  return part;
}

}  // namespace tersor
