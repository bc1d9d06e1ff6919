// Hard cases of topk encoding on a device. Every method for the k-th key runs with every kind of
// residual and value, and with gradients unlike any sample.

#include "kernels/topk/device.h"
#include "kernels/topk/device_plan.h"
#include "tests/device/hard_values.h"
#include "tests/device/pair.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>

namespace tersor::test {
namespace {

using kernels::TopkForce;
using kernels::TopkPath;
using Use = TestDevice::Use;

constexpr std::array kForces = {TopkForce::kNothing, TopkForce::kTooFew, TopkForce::kTooMany,
                                TopkForce::kRadix};

/// A kind of residual.
struct ResidualMode {
  const char* name;
  Dtype dtype = Dtype::kF32;
  bool in_place = false;
  float factor = 3.0f;
};

/// A segment with options on the host and on the device.
class ForcedPair {
 public:
  ForcedPair(TopkOptions options, std::size_t count, HarnessOptions layout,
             const ResidualMode* mode)
      : options_(options),
        host_(spec(options, mode != nullptr), {count}, at(Memory::kHost, layout, mode)),
        device_(spec(options, mode != nullptr), {count}, at(Memory::kDevice, layout, mode)) {
    for_each([&](CodecHarness& harness) {
      if (mode == nullptr) return;
      if (mode->in_place) harness.share_residuals();
      harness.words = {.step = 5, .gradient_factor = 0.5f, .residual_factor = mode->factor};
    });
  }

  template <typename Body>
  void for_each(const Body& body) {
    body(host_);
    body(device_);
  }

  void set(const std::vector<float>& gradient, const std::vector<float>& residual) {
    for_each([&](CodecHarness& harness) {
      harness.set_gradient(gradient);
      harness.set_residual(residual);
    });
  }

  /// Compares frames and residuals. Residuals in place continue from their current values.
  void expect_same_encode(TopkForce force) {
    const GuardedBytes host = host_.encode();
    const GuardedBytes device = encode_on_device(force, host);
    EXPECT_TRUE(same_bytes(host.span(), device.span()));
    if (host_.has_states()) {
      EXPECT_TRUE(same_values(host_.residuals_out(), device_.residuals_out()));
    }
    EXPECT_TRUE(device_.intact());
  }

  TopkPath path() const { return path_; }

 private:
  static std::string spec(const TopkOptions& options, bool feedback) {
    constexpr const char* kNames[] = {"f32", "bf16", "int8"};
    return "topk:density=" + std::to_string(options.density) +
           ",values=" + kNames[static_cast<int>(options.values)] + (feedback ? "+ef" : "");
  }

  static HarnessOptions at(Memory memory, HarnessOptions layout, const ResidualMode* mode) {
    layout.memory = memory;
    if (mode != nullptr) layout.residual_dtype = mode->dtype;
    return layout;
  }

  static void prepare(const void* begin, std::size_t bytes, Use use) {
    if (bytes != 0) test_device()->prepare(static_cast<const std::byte*>(begin), bytes, use);
  }

  /// Calls the kernels' entry point directly, because only this function can force a method.
  GuardedBytes encode_on_device(TopkForce force, const GuardedBytes& expected) {
    EncodeCall call = device_.encode_call();
    GuardedBytes words(sizeof(StateWords), 0, Memory::kDevice);
    std::memcpy(words.span().data(), &device_.words, sizeof(StateWords));
    prepare(words.span().data(), sizeof(StateWords), Use::kInput);
    call.words = reinterpret_cast<const StateWords*>(words.span().data());
    call.execution.stream = test_device()->stream();
    const ByteSpan workspace = call.execution.workspace;
    prepare(workspace.data(), workspace.size(), Use::kOutput);
    for (const ConstValueSpan& gradient : call.gradients)
      prepare(gradient.pointer(), gradient.bytes(), Use::kInput);
    for (const SegmentState& state : call.states) {
      prepare(state.residual_out.pointer(), state.residual_out.bytes(), Use::kOutput);
      prepare(state.residual_in.pointer(), state.residual_in.bytes(), Use::kInput);
    }
    GuardedBytes frame(expected.span().size(), 0, Memory::kDevice);
    prepare(frame.span().data(), frame.span().size(), Use::kOutput);
    kernels::topk_device_encode(call, options_,
                                {frame.span().data(), read_frame_header(expected.span())}, force);
    test_device()->synchronize();
    std::uint32_t path;
    std::memcpy(&path, workspace.data() + offsetof(kernels::TopkControl, path), sizeof path);
    path_ = static_cast<TopkPath>(path);
    return frame;
  }

  TopkOptions options_;
  CodecHarness host_, device_;
  TopkPath path_ = TopkPath::kHit;
};

constexpr ResidualMode kModes[] = {
    {.name = "f32"},
    {.name = "f32 in place", .in_place = true},
    {.name = "f32 in place, not to be undone", .in_place = true, .factor = 0.0f},
    {.name = "bf16", .dtype = Dtype::kBf16},
    {.name = "bf16 in place", .dtype = Dtype::kBf16, .in_place = true}};

/// Calls body(mode) without feedback (null) and for each kind of feedback.
template <typename Body>
void for_each_mode(const Body& body) {
  body(static_cast<const ResidualMode*>(nullptr));
  for (const ResidualMode& mode : kModes) {
    SCOPED_TRACE(mode.name);
    body(&mode);
  }
}

constexpr TopkOptions kOptions[] = {{.density = 0.1, .values = TopkValues::kF32},
                                    {.density = 0.1, .values = TopkValues::kBf16},
                                    {.density = 0.1, .values = TopkValues::kInt8}};

TEST(TopkOnADevice, EveryPathWithEveryResidual) {
  constexpr TopkPath kPaths[] = {TopkPath::kHit, TopkPath::kGather, TopkPath::kGather,
                                 TopkPath::kRadix};
  for (const TopkOptions& options : kOptions)
    for_each_mode([&](const ResidualMode* mode) {
      ForcedPair pair(options, 15'000, {}, mode);
      for (std::size_t i = 0; i < kForces.size(); ++i) {
        SCOPED_TRACE("forced " + std::to_string(i));
        pair.for_each([&](CodecHarness& harness) { harness.draw(i); });
        pair.expect_same_encode(kForces[i]);
        EXPECT_EQ(pair.path(), kPaths[i]);
      }
    });
}

TEST(TopkOnADevice, HardGradients) {
  for (const ValueKind& kind : hard_values())
    for (const TopkOptions& options : kOptions)
      for_each_mode([&](const ResidualMode* mode) {
        SCOPED_TRACE(kind.name);
        const std::size_t count = 5'000;
        ForcedPair pair(options, count, {.shift = 1}, mode);
        pair.set(values_of(kind, count, 1), values_of(kind, count, 2));
        for (const TopkForce force : {TopkForce::kNothing, TopkForce::kRadix}) {
          pair.expect_same_encode(force);
          pair.set(values_of(kind, count, 3), gaussian(count, 4));
        }
      });
}

TEST(TopkOnADevice, UnforcedPaths) {
  const auto path_of = [&](const char* name, std::size_t count) {
    ForcedPair pair(kOptions[0], count, {}, nullptr);
    const auto kind = std::ranges::find(hard_values(), std::string_view(name), &ValueKind::name);
    const std::vector<float> values = values_of(*kind, count, 1);
    pair.set(values, values);
    pair.expect_same_encode(TopkForce::kNothing);
    return pair.path();
  };
  EXPECT_EQ(path_of("few are not zero", 20'000), TopkPath::kHit);
  EXPECT_EQ(path_of("a few more than are sent", 20'000), TopkPath::kHit);
  EXPECT_EQ(path_of("all equal", 20'000), TopkPath::kRadix);
  EXPECT_EQ(path_of("NaN", 20'000), TopkPath::kPoison);
}

TEST(TopkOnADevice, FewLaunches) {
  CodecHarness harness("topk+ef", {20'000});
  const std::size_t before = test_device()->launches();
  harness.encode();
  if (test_device()->launches() == 0) GTEST_SKIP() << "nobody counts launches here";
  // Seven launches plus clearing the control words: eight operations on the stream.
  EXPECT_EQ(test_device()->launches() - before, 7u);
}

TEST(TopkOnADevice, AnyCountAndDensity) {
  const ResidualMode in_place{.name = "", .in_place = true};
  for (const double density : {0.01, 0.2, 1.0, 1e-6})
    for (const std::size_t count : {1, 4095, 4096, 4097, 12'289})
      for (const TopkForce force : kForces) {
        SCOPED_TRACE(std::to_string(count) + " at " + std::to_string(density));
        ForcedPair pair({.density = density}, count, {.shift = count % 4}, &in_place);
        pair.expect_same_encode(force);
      }
}

TEST(TopkOnADevice, NarrowGradients) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16})
    for (const TopkForce force : kForces)
      for_each_mode([&](const ResidualMode* mode) {
        ForcedPair pair(kOptions[2], 9'001, {.dtype = dtype, .shift = 3}, mode);
        pair.expect_same_encode(force);
      });
}

TEST(TopkOnADevice, ManyTiles) {
  for (const char* spec : {"topk+ef", "topk:density=0.001,values=int8+ef"})
    for (const std::size_t count : {65'535, 65'537, 200'003}) {
      SCOPED_TRACE(std::string(spec) + " of " + std::to_string(count));
      Pair pair(spec, {0, count, 0}, {.dtype = Dtype::kBf16});
      pair.expect_same_encode();
      if (count != 200'003) pair.expect_same_decode(2);
    }
}

TEST(TopkOnADevice, PoisonInOneOfManyTiles) {
  for (const bool in_place : {true, false}) {
    const ResidualMode mode{.name = "", .in_place = in_place};
    ForcedPair pair({.density = 0.5}, 70'000, {}, &mode);
    std::vector<float> gradient = gaussian(70'000, 1);
    gradient[66'000] = std::numeric_limits<float>::infinity();
    gradient[5'000] = std::numeric_limits<float>::quiet_NaN();
    pair.set(gradient, gaussian(70'000, 2));
    pair.expect_same_encode(TopkForce::kNothing);
    EXPECT_EQ(pair.path(), TopkPath::kPoison);
  }
}

}  // namespace
}  // namespace tersor::test
