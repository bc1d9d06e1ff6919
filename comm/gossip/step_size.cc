#include "comm/gossip/step_size.h"

#include <tersor/buffer.h>
#include <tersor/error.h>

#include "comm/collectives/alone.h"

#include <algorithm>
#include <random>
#include <vector>

namespace tersor {
namespace {

// What is left of the energy of normal values.
double kept_energy(const Codec& codec) {
  constexpr std::size_t kCount = 1 << 14;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(kCount), back(kCount);
  for (float& one : values) one = normal(generator);
  const Segment segment{.count = kCount};
  const Plan plan = plan_alone(codec, {&segment, 1}, "gossip");
  Buffer frame(plan.frame_bytes), workspace(plan.workspace_bytes);
  const ConstValueSpan in(values);
  const ValueSpan out(back);
  codec.encode({.segments = {&segment, 1},
                .gradients = {&in, 1},
                .execution = {.workspace = workspace.span()}},
               frame.span());
  const ConstByteSpan bytes = frame.span();
  codec.decode({.segments = {&segment, 1},
                .frames = {&bytes, 1},
                .outputs = {&out, 1},
                .execution = {.workspace = workspace.span()}});
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    lost += (values[i] - back[i]) * (values[i] - back[i]);
    all += values[i] * values[i];
  }
  return 1 - lost / all;
}

}  // namespace

std::shared_ptr<const Codec> gossip_codec(const std::string& spec) {
  auto codec = make_codec(spec);
  if (codec->has_feedback())
    throw InvalidArgument("gossip by \"" + spec +
                          "\": what is left out is left over by itself: without +ef");
  return codec;
}

double gossip_step_size(const GossipOptions& options, const Codec& codec) {
  if (options.step_size != 0) {
    if (!(options.step_size > 0 && options.step_size <= 1))
      throw InvalidArgument("gossip: step_size is above 0 and at most 1, not " +
                            std::to_string(options.step_size));
    return options.step_size;
  }
  const double kept = kept_energy(codec);  // tried on rings of 8 and 16: docs/gossip.md
  return kept > 0.6 ? 1.0 : std::max(kept / 2, 0.01);
}

}  // namespace tersor
