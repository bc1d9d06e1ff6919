// See measure.h.
#include "comm/reducer/measure.h"

#include "codecs/loss.h"
#include "kernels/scalar/convert.h"

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

}  // namespace

double relative_error(const Codec& codec, const Segment& segment, ConstValueSpan gradient,
                      ConstValueSpan residual) {
  std::vector<float> wanted(segment.count, 0.0f);
  add_to(wanted, gradient);
  add_to(wanted, residual);
  const PlannedCodec plain(with_feedback(codec.spec().text(), Feedback::kNone),
                           {.count = segment.count,
                            .parameter = segment.parameter,
                            .rows = segment.rows,
                            .columns = segment.columns});
  return measure_loss(plain, wanted).relative_error();
}

}  // namespace tersor
