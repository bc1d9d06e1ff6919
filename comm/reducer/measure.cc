// See measure.h.
#include "comm/reducer/measure.h"

#include "kernels/scalar/convert.h"

#include <tersor/buffer.h>

#include <cmath>
#include <vector>

namespace tersor {
namespace {

void add_to(std::vector<float>& sum, ConstValueSpan values) {
  if (values.empty()) return;
  visit_gradient_dtype(values.dtype(), [&](auto tag) {
    const auto typed = values.as<decltype(tag)>();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += kernels::to_f32(typed[i]);
  });
}

std::shared_ptr<const Codec> without_feedback(const Codec& codec) {
  CodecSpec spec = codec.spec();
  spec.feedback = Feedback::kNone;
  return make_codec(spec.text());
}

double distance_ratio(const std::vector<float>& wanted, const std::vector<float>& decoded) {
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double difference = double{wanted[i]} - decoded[i];
    error += difference * difference;
    energy += double{wanted[i]} * wanted[i];
  }
  return energy == 0 ? 0.0 : std::sqrt(error / energy);
}

}  // namespace

double relative_error(const Codec& codec, const Segment& segment, ConstValueSpan gradient,
                      ConstValueSpan residual) {
  std::vector<float> wanted(segment.count, 0.0f), decoded(segment.count, 0.0f);
  add_to(wanted, gradient);
  add_to(wanted, residual);
  const auto plain = without_feedback(codec);
  const Plan plan = plain->plan({.segments = {&segment, 1}});
  const Buffer frame(plan.frame_bytes), workspace(plan.workspace_bytes);
  Execution execution;
  execution.workspace = workspace.span();
  const ConstValueSpan inputs[] = {wanted};
  plain->encode({.segments = {&segment, 1}, .gradients = inputs, .execution = execution},
                frame.span());
  const ConstByteSpan frames[] = {ConstByteSpan(frame.span()).first(frame_bytes(frame.span()))};
  const ValueSpan outputs[] = {decoded};
  plain->decode(
      {.segments = {&segment, 1}, .frames = frames, .outputs = outputs, .execution = execution});
  return distance_ratio(wanted, decoded);
}

}  // namespace tersor
