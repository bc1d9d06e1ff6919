// See measure.h.
#include "comm/reducer/measure.h"

#include "codecs/planned_codec.h"
#include "kernels/scalar/convert.h"

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
  const PlannedCodec plain(with_feedback(codec.spec().text(), Feedback::kNone),
                           {.count = segment.count,
                            .parameter = segment.parameter,
                            .rows = segment.rows,
                            .columns = segment.columns});
  if (plain.has_frames()) {
    const Buffer frame = plain.frame();
    plain.encode(wanted, frame.span());
    plain.decode(used_bytes(frame), decoded);
  } else {
    plain.exchange_bare(wanted, decoded);
  }
  return distance_ratio(wanted, decoded);
}

}  // namespace tersor
