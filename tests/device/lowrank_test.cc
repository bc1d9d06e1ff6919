// lowrank gives the same bits on a device and on the CPU, for shapes near the tile sizes of thread
// blocks. Compared are raw values of both rounds, the basis, residuals, memory and decoded values.

#include "tests/device/expectations.h"
#include "tests/device/hard_values.h"
#include "tests/device/rounds_pair.h"
#include "tests/support/grid.h"
#include "tests/support/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace tersor::test {
namespace {

struct PairShape {
  std::size_t rows, columns;
  std::size_t count() const { return rows * columns; }
};

constexpr const char* kPairSpecs[] = {"lowrank+ef", "lowrank:rank=1+ef", "lowrank:rank=2",
                                      "lowrank:rank=8,values=bf16+ef"};

bool carries(const std::string& spec, PairShape shape) {
  return make_codec(spec)->carries(
      {.count = shape.count(), .rows = shape.rows, .columns = shape.columns});
}

/// Compares two steps. The second step starts from the memory of the first.
void expect_same_steps(RoundsPair& pair) {
  pair.expect_same();
  pair.for_each([](CodecHarness& rank) {
    for (std::size_t i = 0; i < rank.segments.size(); ++i)
      rank.set_gradient(gaussian(rank.segments[i].count, 900 + i), i);
  });
  pair.expect_same({.encode_factor = 0.5f, .decode_factor = 2.0f});
}

TEST(LowrankOnADevice, AnyShape) {
  constexpr PairShape kShapes[] = {{5, 20},    {20, 5},   {16, 33},  {31, 63},  {32, 64},
                                   {33, 65},   {64, 64},  {63, 129}, {65, 127}, {70, 130},
                                   {128, 256}, {257, 66}, {66, 257}, {9, 1030}, {1030, 9}};
  std::size_t iteration = 0;
  for (const std::string spec : kPairSpecs)
    for (const PairShape shape : kShapes) {
      if (!carries(spec, shape) || (grid_is_small() && iteration++ % 3 != 0)) continue;
      SCOPED_TRACE(spec + ", " + std::to_string(shape.rows) + " rows, " +
                   std::to_string(shape.columns) + " columns");
      for_each_type(spec, {shape.count()}, {.rows = shape.rows}, expect_same_steps);
    }
}

TEST(LowrankOnADevice, ManyDirections) {
  for (const std::string spec : {"lowrank:rank=16,values=bf16", "lowrank:rank=32+ef"}) {
    RoundsPair pair(spec, {260 * 300}, {.rows = 260});
    expect_same_steps(pair);
  }
}

TEST(LowrankOnADevice, AnyStart) {
  for (const std::size_t shift : {1, 2, 3, 5})
    for_each_type("lowrank:values=bf16+ef", {70 * 64, 70 * 130}, {.shift = shift, .rows = 70},
                  [&](RoundsPair& pair) {
                    SCOPED_TRACE(shift);
                    pair.expect_same({.shift = shift});
                  });
}

TEST(LowrankOnADevice, FactorsModesAndResidualsInPlace) {
  for (const std::string spec : kPairSpecs)
    for_each_type(spec, {70 * 130, 70 * 67}, {.rows = 70}, [](RoundsPair& pair) {
      pair.for_each([](CodecHarness& rank) {
        rank.share_residuals();
        rank.words = {.step = 99, .gradient_factor = 0.5f, .residual_factor = 3.0f};
        for (std::size_t i = 0; i < rank.segments.size(); ++i)
          rank.set_output(gaussian(rank.segments[i].count, 3 + i), i);
      });
      pair.expect_same(
          {.encode_factor = 1.0f / 3, .decode_factor = 0.7f, .mode = DecodeMode::kAdd});
    });
}

/// More segments than a launch accepts.
TEST(LowrankOnADevice, SeveralLaunches) {
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < 95; ++i) counts.push_back(16 * (20 + i % 5 * 23));
  for (const std::string spec : {"lowrank:rank=1+ef", "lowrank:rank=2,values=bf16"}) {
    RoundsPair pair(spec, counts, {.rows = 16});
    expect_same_steps(pair);
  }
}

TEST(LowrankOnADevice, InactiveSegments) {
  const std::uint32_t no = 0, yes = 1;
  for (const std::string spec : kPairSpecs)
    for_each_type(spec, {70 * 130, 70 * 64}, {.rows = 70}, [&](RoundsPair& pair) {
      pair.for_each([&](CodecHarness& rank) {
        rank.segments[0].active = &no;
        rank.segments[1].active = &yes;
      });
      pair.device.ranks[1].segments[0].active = pair.host.ranks[1].segments[0].active = &yes;
      pair.expect_same();
      pair.for_each([&](CodecHarness& rank) { rank.segments[0].active = &no; });
      pair.expect_same();
    });
}

/// A matrix of rank two, including zeros: two directions leave no residual.
float of_rank_two(std::size_t i, std::size_t columns) {
  const float left = static_cast<float>(i / columns % 7) - 3;
  const float right = static_cast<float>(i % columns % 5) - 2;
  return left * right + static_cast<float>(i / columns % 3) * static_cast<float>(i % columns % 2);
}

TEST(LowrankOnADevice, HardValues) {
  constexpr PairShape kShape{70, 130};
  std::vector<ValueKind> kinds = hard_values();
  kinds.insert(kinds.end(),
               {{"rank two", [](auto i, auto, float) { return of_rank_two(i, 130); }},
                {"one column", [](auto i, auto, float x) { return i % 130 == 77 ? x : 0.0f; }},
                {"one row", [](auto i, auto, float x) { return i / 130 == 69 ? x : 0.0f; }},
                {"huge", [](auto, auto, float x) { return x * 1e38f; }},
                {"all but overflows", [](auto, auto, float x) { return x * 1e36f; }},
                {"infinities of both signs", [](auto i, auto, float x) {
                   return i % 1000 == 1 ? std::copysign(INFINITY, x) : x;
                 }}});
  for (const ValueKind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    const auto body = [&](RoundsPair& pair) {
      pair.expect_same();
      const std::vector<float> values = values_of(kind, kShape.count(), 4);
      pair.for_each([&](CodecHarness& rank) { rank.set_gradient(values); });
      pair.expect_same({.encode_factor = 0.3f});
    };
    for_each_type("lowrank:rank=2+ef", {kShape.count()}, {.rows = kShape.rows}, body);
    RoundsPair eight("lowrank:rank=8,values=bf16+ef", {kShape.count()}, {.rows = kShape.rows});
    body(eight);
  }
}

TEST(LowrankOnADevice, WordsOfTheNextStep) {
  expect_same_next_words("lowrank+ef", 70 * 130, {.rows = 70});
}

}  // namespace
}  // namespace tersor::test
