// The measured costs of codecs.
#include <gtest/gtest.h>

#include "comm/tuning/measure.h"

namespace tersor {
namespace {

TEST(MeasureCodec, CostsPerValueArePositive) {
  for (const char* spec : {"none", "bf16", "int8", "int4+ef", "topk:density=0.01+ef"}) {
    const CodecCosts costs = measure_codec(spec, Dtype::kF32);
    EXPECT_GT(costs.encode.per_value, 0) << spec;
    EXPECT_GT(costs.decode.per_value, 0) << spec;
    EXPECT_LT(costs.encode.seconds(1 << 20), 1.0) << spec;
  }
  EXPECT_GT(measure_addition(), 0);
}

}  // namespace
}  // namespace tersor
