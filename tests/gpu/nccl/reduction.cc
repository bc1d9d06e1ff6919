// See reduction.h.

#include "tests/gpu/nccl/reduction.h"

#include <cmath>
#include <cstring>

namespace tersor::test {
namespace {

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

std::string text_of(const Case& wanted) {
  return wanted.codec + ", " + std::string(algorithm_name(wanted.algorithm)) + ", " +
         std::to_string(wanted.count) + " values of " + std::string(dtype_name(wanted.dtype));
}

}  // namespace

RepeatedAllreduce::RepeatedAllreduce(const Case& wanted, Transport& transport,
                                     const Location& location, std::uint64_t seed)
    : wanted_(wanted),
      transport_(transport),
      location_(location),
      input_(wanted.count, wanted.dtype, location),
      values_(wanted.count, wanted.dtype, location),
      state_(wanted, transport, location),
      options_{.codec = wanted_.codec,
               .algorithm = wanted_.algorithm,
               .hosts = wanted_.hosts,
               .chunk_count = 200'000,  // so long gradients take several chunks
               .workspace = &workspace_} {
  if (make_codec(wanted_.codec)->has_feedback()) options_.state = &state_.state();
  draw(seed);
}

void RepeatedAllreduce::draw(std::uint64_t seed) {
  constexpr std::uint64_t kRanks = 1000;
  const auto rank = static_cast<std::uint64_t>(transport_.rank());
  input_.write(testing::gaussian(wanted_.count, seed * kRanks + rank + 1));
}

void RepeatedAllreduce::call() {
  const ValueSpan from = input_.span(), to = values_.span();
  if (location_.memory == Memory::kDevice)
    kernels::copy_bytes(to.pointer(), from.pointer(), from.bytes(), location_.stream);
  else if (wanted_.count != 0)
    std::memcpy(to.pointer(), from.pointer(), from.bytes());
  allreduce(transport_, to, options_, location_.stream);
}

void RepeatedAllreduce::require_bits(const Values& expected) const {
  const Values found = result();
  for (std::size_t i = 0; i < expected.size(); ++i)
    require(same_bits(found[i], expected[i]),
            text_of(wanted_) + ": differs from the CPU's at value " + std::to_string(i));
}

void RepeatedAllreduce::require_bits_or_nan(const Values& expected) const {
  const Values found = result();
  std::size_t missing = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    missing += std::isnan(found[i]);
    require(std::isnan(found[i]) || same_bits(found[i], expected[i]),
            text_of(wanted_) + ": value " + std::to_string(i) + " is wrong and no NaN");
  }
  require(missing != 0, text_of(wanted_) + ": all values are there");
}

std::vector<Values> reduced_on_cpu(const Case& wanted, int ranks, int calls, std::uint64_t seed) {
  std::vector<Values> results;
  run_ranks(ranks, {}, [&](Transport& transport) {
    RepeatedAllreduce own(wanted, transport, {}, seed);
    for (int call = 0; call < calls; ++call) {
      own.call();
      if (transport.rank() == 0) results.push_back(own.result());
    }
  });
  return results;
}

}  // namespace tersor::test
