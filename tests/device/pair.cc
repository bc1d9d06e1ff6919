// See pair.h.

#include "tests/device/pair.h"

#include "tests/device/expectations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace tersor::test {
namespace {

HarnessOptions in(Memory memory, HarnessOptions options) {
  options.memory = memory;
  return options;
}

bool reduces(const CodecHarness& harness) {
  const Plan plan = harness.plan();
  const auto& exchanges = plan.rounds.front().exchanges;
  return std::ranges::find(exchanges, Exchange::kTwoShot) != exchanges.end();
}

}  // namespace

Pair::Pair(std::string_view spec, const std::vector<std::size_t>& counts, HarnessOptions options)
    : host_(spec, counts, in(Memory::kHost, options)),
      device_(spec, counts, in(Memory::kDevice, options)) {}

void Pair::for_each(const std::function<void(CodecHarness&)>& body) {
  body(host_);
  body(device_);
}

void Pair::expect_same_encode() {
  const GuardedBytes host = host_.encode(), device = device_.encode();
  expect_same_frame(host.span(), device.span());
  expect_same_residuals();
  expect_intact();
}

Pair::Frames Pair::make_frames(std::size_t frames) {
  Frames made;
  for (std::size_t i = 0; i < frames; ++i) {
    if (i != 0) for_each([&](CodecHarness& harness) { harness.draw(10 + i); });
    made.host.push_back(host_.encode());
    GuardedBytes& copy = made.device.emplace_back(made.host.back().span().size());
    std::memcpy(copy.span().data(), made.host.back().span().data(), copy.span().size());
  }
  return made;
}

void Pair::expect_same_decode(std::size_t frames) {
  const Frames made = make_frames(frames);
  for (const DecodeMode mode : {DecodeMode::kAssign, DecodeMode::kAdd})
    for (const float factor : {1.0f, 0.3f}) {
      for_each([&](CodecHarness& harness) {
        for (std::size_t i = 0; i < harness.segments.size(); ++i)
          harness.set_output(gaussian(harness.segments[i].count, 3 + i), i);
      });
      host_.decode(made.host, mode, factor);
      device_.decode(made.device, mode, factor);
      expect_same_values(host_.outputs(), device_.outputs(), "decoded value");
    }
  expect_intact();
}

void Pair::expect_same_reduce(std::size_t frames) {
  if (!reduces(host_)) return;
  const Frames made = make_frames(frames);
  for (const float factor : {1.0f, 1.0f / 3}) {
    const GuardedBytes host = host_.reduce(made.host, factor);
    const GuardedBytes device = device_.reduce(made.device, factor);
    expect_same_frame(host.span(), device.span());
    expect_same_residuals();
  }
  expect_intact();
}

void Pair::expect_same_native() {
  const Round round = host_.plan().rounds.front();
  if (std::ranges::find(round.exchanges, Exchange::kNativeSum) == round.exchanges.end()) return;
  for (const float factor : {1.0f, 0.25f})
    for (const std::size_t shift : {0, 1}) {
      GuardedValues raw[2] = {{round.native_count, round.native_dtype, shift, Memory::kHost},
                              {round.native_count, round.native_dtype, shift, Memory::kDevice}};
      GuardedValues* next = raw;
      for_each([&](CodecHarness& harness) {
        harness.codec().encode_native(harness.encode_call(), factor, next->span());
        DecodeCall call = harness.decode_call({});
        call.factor = 0.5f;
        harness.codec().decode_native(call, next->span());
        ++next;
      });
      expect_same_values(raw[0].floats(), raw[1].floats(), "bare value");
      EXPECT_TRUE(same_bytes(raw[0].bytes(), raw[1].bytes()));
      EXPECT_TRUE(raw[0].intact() && raw[1].intact());
      expect_same_values(host_.outputs(), device_.outputs(), "value decoded from bare ones");
    }
  expect_intact();
}

void Pair::expect_same_words() {
  for (const bool in_place : {true, false}) {
    StateWords written[2];
    StateWords* next = written;
    for_each([&](CodecHarness& harness) {
      harness.words = {.step = 41, .gradient_factor = 2, .residual_factor = 0.5f, .overflows = 3};
      EncodeCall call = harness.encode_call();
      call.words_out = in_place ? &harness.words : next;
      harness.encode(call);
      *next++ = *call.words_out;
    });
    SCOPED_TRACE(in_place ? "in place" : "elsewhere");
    test::expect_same_words(written[0], written[1]);
    EXPECT_EQ(written[1].step, 42u);
  }
}

void Pair::expect_same_residuals() const {
  if (host_.has_states())
    expect_same_values(host_.residuals_out(), device_.residuals_out(), "residual");
}

void Pair::expect_intact() const { EXPECT_TRUE(host_.intact() && device_.intact()); }

}  // namespace tersor::test
