// Shared by the tests of int8 and int4: compares frames with the reference, byte by byte.
#pragma once

#include "tests/support/codec_conformance.h"
#include "tests/support/reference.h"

#include <tersor/align.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace tersor::test {

/// The bytes of a codec's numbers: scales, then codes, each section padded to 16.
struct QuantizeBytes {
  QuantizeTask task;
  unsigned bits;  // of a code

  std::vector<std::byte> payload(const Quantized& quantized) const {
    const std::size_t scales = align_up(quantized.scales.size() * 4, 16);
    const std::size_t count = quantized.codes.size();
    std::vector<std::byte> bytes(scales + align_up(ceil_div(count * bits, 8), 16));
    if (!quantized.scales.empty())
      std::memcpy(bytes.data(), quantized.scales.data(), quantized.scales.size() * 4);
    for (std::size_t i = 0; i < count; ++i) {
      const unsigned code = static_cast<unsigned>(quantized.codes[i]) & ((1u << bits) - 1);
      bytes[scales + i * bits / 8] |= static_cast<std::byte>(code << i * bits % 8);
    }
    return bytes;
  }
};

/// Gradients covering all corner cases: blocks of tiny, huge, mixed and equal values.
inline std::vector<float> difficult_values(std::size_t count, std::uint64_t seed) {
  std::vector<float> values = gaussian(count, seed);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t kind = i / 256 % 8;
    if (kind == 1) values[i] = std::ldexp(values[i], -140);
    if (kind == 2) values[i] = std::ldexp(values[i], 120);
    if (kind == 3) values[i] = std::ldexp(values[i], static_cast<int>(mixed(i) % 60) - 30);
    if (kind == 4) values[i] = i % 2 == 0 ? 1.0f : -1.0f;
    if (kind == 5) values[i] = std::ldexp(values[i], -100);
    if (kind == 6 && i % 256 != 7) values[i] = 0.0f;
  }
  return values;
}

/// Encodes `values` with and without feedback and compares payload and residual with the reference.
inline void expect_reference_bytes(const std::string& spec, QuantizeBytes expected,
                                   const std::vector<float>& values) {
  CodecHarness harness(spec, {values.size()});
  harness.segments[0].first_index = 512 * 3;
  harness.set_gradient(values);
  harness.words = {.step = 9, .gradient_factor = 0.3f, .residual_factor = 0.7f};
  const GuardedBytes frame = harness.encode();
  expected.task.key = harness.random.key;
  expected.task.step = 9;
  expected.task.parameter = harness.segments[0].parameter;
  expected.task.first_index = 512 * 3;
  const Quantized quantized = quantize(expected.task, harness.sent(), harness.residual_in());
  const std::vector<std::byte> payload = expected.payload(quantized);
  EXPECT_TRUE(same_bytes(frame.span().subspan(sizeof(FrameHeader)), payload)) << spec;
  EXPECT_TRUE(!harness.has_states() || same_values(harness.residual_out(), quantized.residual))
      << spec;
}

/// Repeats the check for all instruction sets and several counts.
inline void expect_reference_bytes(const std::string& spec, const QuantizeBytes& expected) {
  for_each_isa([&] {
    for (const std::size_t count : {0, 1, 127, 129, 255, 256, 257, 511, 513, 7919, 100'003})
      expect_reference_bytes(spec, expected, difficult_values(count, count + 1));
  });
}

/// decoded = code · (scale · factor), then fma(code, scale · factor, …) for each further frame.
inline void expect_reference_decode(const std::string& spec, const QuantizeTask& task,
                                    Dtype dtype) {
  const std::size_t count = 3000;
  CodecHarness harness(spec, {count}, {.dtype = dtype});
  std::vector<GuardedBytes> frames;
  std::vector<Quantized> quantized;
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    harness.draw(rank);
    frames.push_back(harness.encode());
    quantized.push_back(quantize(task, harness.sent(), {}));
  }
  const float factor = 0.3f;
  for (const DecodeMode mode : {DecodeMode::kAssign, DecodeMode::kAdd}) {
    harness.set_output(gaussian(count, 44));
    std::vector<float> expected = harness.output();
    harness.decode(frames, mode, factor);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t rank = 0; rank < 3; ++rank) {
        const float scale = quantized[rank].scales[i / task.block] * factor;
        const auto code = static_cast<float>(quantized[rank].codes[i]);
        const bool assigns = mode == DecodeMode::kAssign && rank == 0;
        expected[i] = assigns ? code * scale : std::fma(code, scale, expected[i]);
      }
      expected[i] = decoded_as(expected[i], dtype);
    }
    EXPECT_TRUE(same_values(harness.output(), expected)) << spec << dtype_name(dtype);
  }
}

/// fma in rank order from +0, then the owner's residual, then encode.
inline void expect_reference_reduce(const std::string& spec, const QuantizeBytes& bytes) {
  const std::size_t count = 3000;
  CodecHarness harness(spec, {count});
  std::vector<GuardedBytes> frames;
  std::vector<float> sum(count);
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    harness.draw(rank);
    frames.push_back(harness.encode());
    const Quantized quantized = quantize(bytes.task, harness.sent(), {});
    for (std::size_t i = 0; i < count; ++i)
      sum[i] = std::fma(static_cast<float>(quantized.codes[i]),
                        quantized.scales[i / bytes.task.block], sum[i]);
  }
  const std::vector<float> residual = harness.residual_in();
  for (std::size_t i = 0; i < count; ++i) sum[i] += residual[i];
  const Quantized expected = quantize(bytes.task, sum, residual);
  const GuardedBytes reduced = harness.reduce(frames);
  EXPECT_TRUE(same_bytes(reduced.span().subspan(sizeof(FrameHeader)), bytes.payload(expected)));
  EXPECT_TRUE(same_values(harness.residual_out(), expected.residual));
}

/// The mean error of `draws` draws of a gradient, in steps of the scale, over all values.
inline double mean_error_of_draws(const std::string& spec, std::uint32_t draws) {
  const std::size_t count = 4096;
  CodecHarness harness(spec, {count});
  std::vector<double> sums(count);
  for (std::uint32_t step = 0; step < draws; ++step) {
    harness.words.step = step;
    harness.decode({harness.encode()});
    const std::vector<float> decoded = harness.output();
    for (std::size_t i = 0; i < count; ++i) sums[i] += decoded[i];
  }
  const std::vector<float> gradient = harness.gradient();
  double error = 0;
  for (std::size_t i = 0; i < count; ++i) error += std::fabs(sums[i] / draws - gradient[i]);
  return error / static_cast<double>(count);
}

}  // namespace tersor::test
