#include "comm/collectives/alone.h"

#include <tersor/error.h>

#include <algorithm>
#include <string>

namespace tersor {

Plan plan_alone(const Codec& codec, std::span<const Segment> segments, std::string_view who) {
  Plan plan;
  if (!codec.traits().needs_shape) plan = codec.plan({.segments = segments});
  const auto has_frames = [](const Round& round) {
    return std::ranges::find(round.exchanges, Exchange::kGather) != round.exchanges.end();
  };
  if (plan.rounds.size() != 1 || !has_frames(plan.rounds.front()))
    throw InvalidArgument(std::string(who) + " by \"" + codec.spec().text() +
                          "\", which all ranks exchange together: take a codec that encodes by "
                          "itself");
  return plan;
}

}  // namespace tersor
