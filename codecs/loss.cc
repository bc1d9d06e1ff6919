#include "codecs/loss.h"

#include "kernels/scalar/convert.h"

#include <cmath>

namespace tersor {
namespace {

/// Encodes the gradient and decodes to `output`; returns the payload bytes.
std::size_t send(const PlannedCodec& codec, ConstValueSpan gradient, ValueSpan output) {
  if (!codec.has_frames()) return codec.exchange_raw(gradient, output);
  const Buffer frame = codec.frame();
  codec.encode(gradient, frame.span());
  codec.decode(used_bytes(frame), output);
  return payload_bytes(frame);
}

}  // namespace

double CodecLoss::relative_error() const {
  return energy_lost == 0 ? 0 : std::sqrt(energy_lost / energy);
}

PlannedCodec plan_without_feedback(std::string_view spec, PlanInput plan_input,
                                   std::size_t nominal_ranks) {
  const std::string plain = with_feedback(spec, Feedback::kNone);
  PlannedCodec alone(plain, plan_input);
  if (alone.has_frames()) return alone;
  plan_input.contributions = nominal_ranks;
  return PlannedCodec(plain, plan_input);
}

CodecLoss measure_loss(const PlannedCodec& codec, ConstValueSpan gradient) {
  const Buffer decoded(gradient.bytes());
  const ValueSpan output = decoded.values(gradient.count(), gradient.dtype());
  CodecLoss loss{.payload_bytes = send(codec, gradient, output)};
  visit_gradient_dtype(gradient.dtype(), [&]<typename T>(T) {
    const auto wanted = gradient.as<T>();
    const auto found = output.as<T>();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double value = kernels::to_f32(wanted[i]);
      const double difference = value - kernels::to_f32(found[i]);
      loss.energy += value * value;
      loss.energy_lost += difference * difference;
    }
  });
  return loss;
}

}  // namespace tersor
