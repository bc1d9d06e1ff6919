// See native_rounds.h.

#include "tests/support/native_rounds.h"

#include "kernels/scalar/convert.h"

#include <algorithm>
#include <cstdint>
#include <functional>

namespace tersor::test {
namespace {

template <typename Unsigned, typename Operation>
void merge(ValueSpan into, ConstValueSpan from, const Operation& operation) {
  auto* merged = reinterpret_cast<Unsigned*>(into.pointer());
  for (const Unsigned value : numbers<Unsigned>(from)) {
    *merged = static_cast<Unsigned>(operation(*merged, value));
    ++merged;
  }
}

/// Adds like a transport: with a single rounding per value.
void add(ValueSpan into, ConstValueSpan from) {
  visit_gradient_dtype(into.dtype(), [&]<typename T>(T) {
    auto* sum = reinterpret_cast<T*>(into.pointer());
    for (const T value : numbers<T>(from)) {
      *sum = kernels::from_f32<T>(kernels::to_f32(*sum) + kernels::to_f32(value));
      ++sum;
    }
  });
}

}  // namespace

void combine(Exchange exchange, ValueSpan into, ConstValueSpan from) {
  const auto larger = [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); };
  if (exchange == Exchange::kNativeMaximum) return merge<std::uint32_t>(into, from, larger);
  if (is_gradient_dtype(into.dtype())) return add(into, from);
  if (dtype_bytes(into.dtype()) == 1) return merge<std::uint8_t>(into, from, std::plus<>());
  merge<std::uint32_t>(into, from, std::plus<>());
}

NativeRounds::NativeRounds(std::string_view spec, const std::vector<std::size_t>& counts,
                           HarnessOptions options)
    : memory_(options.memory) {
  for (std::uint64_t rank = 0; rank < options.contributions; ++rank) {
    options.seed = rank + 1;
    ranks.emplace_back(spec, counts, options).random.key += rank;
  }
}

void NativeRounds::exchange(const NativeOptions& options) {
  raw.clear();
  combined.clear();
  const Plan plan = ranks.front().plan();
  for (std::size_t round = 0; round < plan.rounds.size(); ++round) {
    run_round(round, plan.rounds[round], options);
    take_back(round, round + 1 == plan.rounds.size(), options);
  }
}

void NativeRounds::run_round(std::size_t round, const Round& plan, const NativeOptions& options) {
  auto& written = raw.emplace_back();
  for (CodecHarness& rank : ranks) {
    rank.identity.round = static_cast<std::uint8_t>(round);
    written.emplace_back(plan.native_count, plan.native_dtype, options.shift, memory_);
    rank.codec().encode_native(rank.encode_call(), options.encode_factor, written.back().span());
  }
  auto& all = combined.emplace_back(plan.native_count, plan.native_dtype, options.shift, memory_);
  std::ranges::copy(written.front().bytes(), all.span().pointer());
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    combine(plan.exchanges.front(), all.span(), written[rank].span());
}

void NativeRounds::take_back(std::size_t round, bool is_last, const NativeOptions& options) {
  for (CodecHarness& rank : ranks) {
    DecodeCall call = rank.decode_call({});
    call.mode = options.mode;
    call.factor = options.decode_factor;
    if (is_last)
      rank.codec().decode_native(call, combined[round].span());
    else
      rank.codec().absorb(call, combined[round].span());
  }
}

bool NativeRounds::intact() const {
  const auto is_intact = [](const auto& part) { return part.intact(); };
  return std::ranges::all_of(ranks, is_intact) && std::ranges::all_of(combined, is_intact) &&
         std::ranges::all_of(
             raw, [&](const auto& values) { return std::ranges::all_of(values, is_intact); });
}

void expect_same_rounds(const NativeRounds& a, const NativeRounds& b) {
  for (std::size_t rank = 0; rank < a.ranks.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const CodecHarness &one = a.ranks[rank], &other = b.ranks[rank];
    for (std::size_t round = 0; round < a.raw.size(); ++round)
      EXPECT_TRUE(same_bytes(a.raw[round][rank].bytes(), b.raw[round][rank].bytes()))
          << "bare values of round " << round;
    EXPECT_TRUE(same_values(one.residuals_out(), other.residuals_out())) << "residuals";
    EXPECT_TRUE(same_values(one.outputs(), other.outputs())) << "decoded values";
    EXPECT_TRUE(same_values(one.all_memory(), other.all_memory())) << "the codec's memory";
  }
  EXPECT_TRUE(a.intact() && b.intact());
}

}  // namespace tersor::test
