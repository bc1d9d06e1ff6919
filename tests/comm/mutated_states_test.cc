// Damaged states, with and without a valid checksum. load_state either refuses a state with
// InvalidArgumentError and changes nothing, or accepts every field. TERSOR_STATE_MUTATIONS sets the
// number of states.
#include "comm/reducer/state.h"
#include "kernels/host/checksum.h"
#include "tests/comm/ranks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kTrailer = sizeof(std::uint64_t);

int mutations() {
  const char* told = std::getenv("TERSOR_STATE_MUTATIONS");
  return told == nullptr ? 20000 : std::atoi(told);
}

struct Trained {
  explicit Trained(Transport& transport)
      : reducer(transport, {.rules = {{"a", "int4+ef"}, {"b", "lowrank"}, {"*", "none"}}}) {
    reducer.add("a", gradients[0]);
    reducer.add("b", gradients[1], 5, 8);
    reducer.add("c", gradients[2]);
    for (const char* name : {"b", "c", "a"}) reducer.ready(name);
    reducer.wait();
  }

  std::vector<Values> gradients = {gaussian(300, 1), gaussian(40, 2), gaussian(7, 3)};
  GradientReducer reducer;
};

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  Bytes mutated(Bytes bytes) {
    for (std::size_t i = 0, changes = 1 + below(3); i < changes; ++i) change(bytes);
    if (below(4) != 0) seal(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }

  void change(Bytes& bytes) {
    static constexpr std::uint64_t kNumbers[] = {0,
                                                 1,
                                                 2,
                                                 7,
                                                 0x7f800000,
                                                 0x7fc00000,
                                                 0x7fffffff,
                                                 0x80000000,
                                                 0xffffffff,
                                                 0x100000000,
                                                 std::uint64_t{1} << 62,
                                                 ~std::uint64_t{0}};
    if (bytes.size() < 2 * kTrailer) return;
    const std::size_t at = below(bytes.size() - kTrailer);
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t some = std::min(1 + below(16), bytes.size() - at);
    switch (below(6)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1u << below(8));
        return;
      case 1:
        bytes[at] = static_cast<std::byte>(below(256));
        return;
      case 2:
      case 3:  // most numbers are in the first bytes
        std::memcpy(&bytes[below(2) == 0 ? at : at % 128], &kNumbers[below(std::size(kNumbers))],
                    below(2) == 0 ? 4 : 8);
        return;
      case 4:
        bytes.erase(begin, begin + static_cast<std::ptrdiff_t>(some));
        return;
      default:
        bytes.insert(begin, some, static_cast<std::byte>(below(2) * 255));
    }
  }

  /// Writes a valid checksum at the expected offset.
  static void seal(Bytes& bytes) {
    bytes.resize((std::max(bytes.size(), kTrailer) - kTrailer) / 4 * 4 + kTrailer);
    const std::size_t body = bytes.size() - kTrailer;
    const std::uint64_t checksum = kernels::checksum(bytes.data(), body / 4, 0);
    std::memcpy(bytes.data() + body, &checksum, sizeof checksum);
  }

  std::mt19937_64 random_;
};

void expect_loaded(const ReducerState& found, const ReducerState& wanted) {
  ASSERT_EQ(found.step, wanted.step);
  ASSERT_EQ(found.order, wanted.order);
  ASSERT_EQ(found.rank, wanted.rank);
  ASSERT_EQ(found.ranks, wanted.ranks);
  ASSERT_EQ(found.reduction, wanted.reduction);
  ASSERT_EQ(found.parameters.size(), wanted.parameters.size());
  for (std::size_t i = 0; i < found.parameters.size(); ++i) {
    const ReducerState::Parameter &one = found.parameters[i], &other = wanted.parameters[i];
    ASSERT_EQ(one.name, other.name);
    ASSERT_EQ(one.codec, other.codec);
    ASSERT_EQ(one.count, other.count);
    if (!other.residual.empty()) ASSERT_EQ(one.residual_first, other.residual_first);
    ASSERT_EQ(one.residual, other.residual);
    ASSERT_EQ(one.owner, other.owner);
    ASSERT_EQ(one.memory, other.memory);
  }
}

void expect_finite(const ReducerState& state) {
  for (const ReducerState::Parameter& one : state.parameters)
    for (const std::vector<float>* values : {&one.residual, &one.owner, &one.memory})
      for (const float value : *values) ASSERT_TRUE(std::isfinite(value));
}

TEST(MutatedStates, AreRejectedOrFullyRestored) {
  int taken = 0, refused = 0;
  run_ranks(2, {}, [&](Transport& transport) {
    Trained run(transport);
    const Bytes exact = run.reducer.save_state(), portable = run.reducer.save_portable_state();
    if (transport.rank() == 1) return;
    Mutator mutator(17);
    Bytes last = exact;
    for (int i = 0; i < mutations() && !::testing::Test::HasFatalFailure(); ++i) {
      const Bytes state = mutator.mutated(i % 4 == 0 ? portable : exact);
      try {
        run.reducer.load_state(state);
      } catch (const InvalidArgumentError&) {
        ++refused;
        ASSERT_EQ(run.reducer.save_state(), last) << i;
        continue;
      }
      ++taken;
      last = run.reducer.save_state();
      const ReducerState found = read_state(last), wanted = read_state(state);
      ASSERT_EQ(found.step, wanted.step);
      expect_finite(found);
      if (wanted.form == ReducerState::Form::kExact) expect_loaded(found, wanted);
    }
  });
  RecordProperty("taken", taken);
  EXPECT_GT(taken, mutations() / 100) << "mutations reach the memory";
  EXPECT_GT(refused, mutations() / 10);
}

}  // namespace
}  // namespace tersor::testing
