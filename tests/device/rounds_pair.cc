// See rounds_pair.h.

#include "tests/device/rounds_pair.h"

#include "tests/device/expectations.h"

#include <gtest/gtest.h>

namespace tersor::test {
namespace {

HarnessOptions in_memory(Memory memory, HarnessOptions options) {
  options.memory = memory;
  options.contributions = 2;
  return options;
}

}  // namespace

RoundsPair::RoundsPair(const std::string& spec, const std::vector<std::size_t>& counts,
                       const HarnessOptions& options)
    : host(spec, counts, in_memory(Memory::kHost, options)),
      device(spec, counts, in_memory(Memory::kDevice, options)) {}

void RoundsPair::for_each(const std::function<void(CodecHarness&)>& body) {
  for (NativeRounds* rounds : {&host, &device})
    for (CodecHarness& rank : rounds->ranks) body(rank);
}

void RoundsPair::expect_same(const NativeOptions& options) {
  host.exchange(options);
  device.exchange(options);
  expect_same_rounds(host, device);
  for (std::size_t rank = 0; rank < host.ranks.size(); ++rank)
    EXPECT_TRUE(same_bytes(host.ranks[rank].round_state(), device.ranks[rank].round_state()))
        << "round state";
}

void for_each_type(const std::string& spec, const std::vector<std::size_t>& counts,
                   HarnessOptions options, const std::function<void(RoundsPair&)>& body) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
    for (const Dtype residual : {Dtype::kF32, Dtype::kBf16}) {
      if (residual == Dtype::kBf16 && !make_codec(spec)->has_feedback()) continue;
      options.dtype = dtype;
      options.residual_dtype = residual;
      SCOPED_TRACE(std::string(dtype_name(dtype)) + ", residual " +
                   std::string(dtype_name(residual)));
      RoundsPair pair(spec, counts, options);
      body(pair);
    }
}

void expect_same_next_words(const std::string& spec, std::size_t count,
                            const HarnessOptions& options) {
  for (const bool in_place : {true, false}) {
    RoundsPair pair(spec, {count}, options);
    pair.expect_same();
    for (NativeRounds* rounds : {&pair.host, &pair.device}) {
      CodecHarness& rank = rounds->ranks[0];
      rank.words = {.step = 41, .gradient_factor = 2, .residual_factor = 0.5f, .overflows = 3};
      EncodeCall call = rank.encode_call();
      StateWords next;
      call.words_out = in_place ? &rank.words : &next;
      rank.codec().encode_native(call, 1.0f, rounds->raw[1][0].span());
      if (!in_place) rank.words = next;
    }
    expect_same_words(pair.host.ranks[0].words, pair.device.ranks[0].words);
    EXPECT_EQ(pair.device.ranks[0].words.step, 42u);
  }
}

}  // namespace tersor::test
