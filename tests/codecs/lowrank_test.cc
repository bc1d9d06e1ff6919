// lowrank compared with a reference written from its header alone, value by value. Properties of
// lowrank only: exact results for matrices of low rank, orthonormal directions, and no lost values.

#include "tests/support/codec_conformance.h"
#include "tests/support/native_rounds.h"
#include "tests/support/reference.h"

#include <tersor/codecs/lowrank.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace tersor::test {
namespace {

using Matrix = std::vector<std::vector<float>>;  // by columns

struct Shape {
  std::size_t rows, columns;
  std::size_t count() const { return rows * columns; }
};

NativeRounds rounds_of(const std::string& spec, Shape shape, HarnessOptions options = {}) {
  options.rows = shape.rows;
  return NativeRounds(spec, {shape.count()}, options);
}

/// Sums term(i) in 64 chains, then adds the chains: s_i + s_(i + 32), then 16, ...
template <typename Term>
float chained(std::size_t count, const Term& term) {
  std::vector<float> sums(64, 0.0f);
  for (std::size_t i = 0; i < (count + 63) / 64 * 64; ++i) {
    const auto [a, b] = i < count ? term(i) : std::pair{0.0f, 0.0f};
    sums[i % 64] = std::fma(a, b, sums[i % 64]);
  }
  for (std::size_t half = 32; half != 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::fabs(value));
  return most;
}

/// Scales a column to at most 1. Returns the removed power of two.
float bring_into_unit(std::vector<float>& column) {
  if (largest(column) == 0) return 0;
  const int exponent = std::ilogb(largest(column));
  for (float& value : column) value = std::ldexp(value, -exponent);
  return std::ldexp(1.0f, exponent);
}

Matrix expected_directions(const std::vector<float>& memory, Shape shape, std::size_t rank,
                           std::uint32_t parameter) {
  Matrix directions(rank, std::vector<float>(shape.columns));
  for (std::size_t j = 0; j < rank; ++j) {
    std::copy_n(memory.data() + j * shape.columns, shape.columns, directions[j].begin());
    if (largest(directions[j]) != 0) {
      bring_into_unit(directions[j]);
      continue;
    }
    for (std::size_t c = 0; c < shape.columns; ++c) {
      const auto index = static_cast<std::uint32_t>(c * rank + j);
      const auto words = philox7({index, 0, 0xffffffff, parameter}, 0x6c6f7772616e6b21);
      directions[j][c] = std::ldexp(static_cast<float>(static_cast<std::int32_t>(words[0])), -31);
    }
  }
  return directions;
}

void orthonormalize(Matrix& basis) {
  const std::size_t rows = basis[0].size();
  const auto product = [&](std::size_t a, std::size_t b) {
    return chained(rows, [&](std::size_t i) { return std::pair{basis[a][i], basis[b][i]}; });
  };
  for (std::vector<float>& column : basis) bring_into_unit(column);
  for (const float least : {0.0f, 0.5f})
    for (std::size_t j = 0; j < basis.size(); ++j) {
      const float power = bring_into_unit(basis[j]);
      const float length = std::sqrt(product(j, j));
      const float inverse = length * power > least ? 1.0f / length : 0.0f;
      for (float& value : basis[j]) value *= inverse;
      for (std::size_t later = j + 1; later < basis.size(); ++later) {
        const float factor = -product(j, later);
        for (std::size_t i = 0; i < rows; ++i)
          basis[later][i] = std::fma(basis[j][i], factor, basis[later][i]);
      }
    }
}

/// Splits values into columns.
Matrix columns_of(const std::vector<float>& values, std::size_t rank) {
  const std::size_t length = values.size() / rank;
  Matrix columns;
  for (std::size_t j = 0; j < rank; ++j)
    columns.emplace_back(values.begin() + static_cast<std::ptrdiff_t>(j * length),
                         values.begin() + static_cast<std::ptrdiff_t>((j + 1) * length));
  return columns;
}

std::vector<float> joined(const Matrix& columns) {
  std::vector<float> all;
  for (const auto& column : columns) all.insert(all.end(), column.begin(), column.end());
  return all;
}

Matrix expected_left(const std::vector<float>& p, Shape shape, const Matrix& directions) {
  Matrix left(directions.size(), std::vector<float>(shape.rows));
  for (std::size_t j = 0; j < left.size(); ++j)
    for (std::size_t i = 0; i < shape.rows; ++i)
      left[j][i] = chained(shape.columns, [&](std::size_t c) {
        return std::pair{p[i * shape.columns + c], directions[j][c]};
      });
  return left;
}

Matrix expected_right(const std::vector<float>& p, Shape shape, const Matrix& basis) {
  Matrix right(basis.size(), std::vector<float>(shape.columns));
  for (std::size_t j = 0; j < right.size(); ++j)
    for (std::size_t c = 0; c < shape.columns; ++c)
      for (std::size_t first = 0; first < shape.rows; first += 64) {
        float sum = 0;
        for (std::size_t i = first; i < std::min(first + 64, shape.rows); ++i)
          sum = std::fma(p[i * shape.columns + c], basis[j][i], sum);
        right[j][c] += sum;
      }
  return right;
}

std::vector<float> expected_values(Shape shape, const Matrix& basis, const Matrix& right) {
  std::vector<float> values(shape.count());
  for (std::size_t i = 0; i < shape.rows; ++i)
    for (std::size_t c = 0; c < shape.columns; ++c) {
      float value = basis[0][i] * right[0][c];
      for (std::size_t j = 1; j < basis.size(); ++j)
        value = std::fma(right[j][c], basis[j][i], value);
      values[i * shape.columns + c] = value;
    }
  return values;
}

struct Numbers {
  std::string spec;
  std::size_t rank;
  Dtype sent, dtype;
  float factor;
};

void expect_rank(const NativeRounds& rounds, std::size_t rank, const Numbers& one, Shape shape,
                 const Matrix& basis) {
  const CodecHarness& own = rounds.ranks[rank];
  Matrix right = expected_right(own.sent(), shape, basis);
  std::vector<float> sent = joined(right);
  for (float& value : sent) value = rounded(value * one.factor, one.sent);
  EXPECT_TRUE(same_values(rounds.raw[1][rank].floats(), sent));
  if (one.sent == Dtype::kBf16) {
    for (float& value : sent) value /= one.factor;
    right = columns_of(sent, one.rank);
  }
  const std::vector<float> decoded = expected_values(shape, basis, right);
  std::vector<float> residual = own.sent();
  for (std::size_t i = 0; i < residual.size(); ++i)
    residual[i] = rounded(residual[i] - decoded[i], Dtype::kF32);
  EXPECT_TRUE(same_values(own.residual_out(), residual));
}

void expect_exchange(NativeRounds& rounds, const Numbers& one, Shape shape) {
  const std::vector<float> memory = rounds.ranks[0].memory();
  rounds.exchange({.encode_factor = one.factor, .decode_factor = 0.75f});
  const Matrix directions = expected_directions(memory, shape, one.rank, 7);
  for (std::size_t rank = 0; rank < rounds.ranks.size(); ++rank)
    EXPECT_TRUE(same_values(rounds.raw[0][rank].floats(),
                            joined(expected_left(rounds.ranks[rank].sent(), shape, directions))));
  Matrix basis = columns_of(rounds.combined[0].floats(), one.rank);
  orthonormalize(basis);
  for (std::size_t rank = 0; rank < rounds.ranks.size(); ++rank)
    expect_rank(rounds, rank, one, shape, basis);
  const std::vector<float> sum = rounds.combined[1].floats();
  std::vector<float> outputs = expected_values(shape, basis, columns_of(sum, one.rank));
  for (float& value : outputs) value = decoded_as(value * 0.75f, one.dtype);
  for (const CodecHarness& rank : rounds.ranks) {
    EXPECT_TRUE(same_values(rank.output(), outputs));
    EXPECT_TRUE(same_values(rank.memory(), sum));
  }
  EXPECT_TRUE(rounds.intact());
}

TEST(Lowrank, MatchesReferenceValues) {
  for_each_isa([] {
    const Numbers cases[] = {
        {"lowrank+ef", 4, Dtype::kF32, Dtype::kF32, 1.0f},
        {"lowrank:rank=1+ef", 1, Dtype::kF32, Dtype::kBf16, 1.0f / 3},
        {"lowrank:rank=8,values=bf16+ef", 8, Dtype::kBf16, Dtype::kF32, 1.0f / 3},
        {"lowrank:rank=2,values=bf16+ef", 2, Dtype::kBf16, Dtype::kF16, 1.0f}};
    for (const Numbers& one : cases)
      for (const Shape shape : {Shape{70, 130}, Shape{129, 300}, Shape{64, 64}}) {
        SCOPED_TRACE(one.spec + " " + std::to_string(shape.rows));
        NativeRounds rounds = rounds_of(one.spec, shape, {.dtype = one.dtype, .contributions = 3});
        expect_exchange(rounds, one, shape);
        for (std::size_t rank = 0; rank < 3; ++rank) rounds.ranks[rank].draw(10 + rank);
        expect_exchange(rounds, one, shape);  // starts from the memory
      }
  });
}

/// A sum of `rank` outer products of random vectors.
std::vector<float> of_rank(Shape shape, std::size_t rank, std::uint64_t seed) {
  std::vector<double> sum(shape.count());
  for (std::size_t j = 0; j < rank; ++j) {
    const auto left = gaussian(shape.rows, seed + 2 * j);
    const auto right = gaussian(shape.columns, seed + 2 * j + 1);
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] += double{left[i / shape.columns]} * right[i % shape.columns];
  }
  return {sum.begin(), sum.end()};
}

TEST(Lowrank, ReconstructsLowRankMatrices) {
  for (const float scale : {1.0f, 0x1p-60f, 0x1p40f})
    for (const std::size_t rank : {1, 3, 4})
      for (const Shape shape : {Shape{96, 200}, Shape{400, 50}, Shape{5, 4000}, Shape{4000, 5}}) {
        if (shape.rows + shape.columns > 4000 && rank > 1) continue;
        SCOPED_TRACE(::testing::Message() << scale << " " << rank << " " << shape.rows);
        const std::string spec = rank == 1 ? "lowrank:rank=1" : "lowrank";
        NativeRounds rounds = rounds_of(spec, shape, {.contributions = 2});
        std::vector<float> sum(shape.count());
        const std::vector<float> one = of_rank(shape, rank, 3);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = 3 * (scale * one[i]);
        for (std::size_t i = 0; i < 2; ++i) {
          std::vector<float> part = one;
          for (float& value : part) value *= scale * static_cast<float>(i + 1);
          rounds.ranks[i].set_gradient(part);
        }
        rounds.exchange();
        EXPECT_LT(distance(rounds.ranks[0].output(), sum), 0x1p-18 * norm_of(sum));
      }
}

/// The codec's round state without padding.
Matrix round_state_basis(const CodecHarness& rank, Shape shape, std::size_t columns) {
  const auto* values = reinterpret_cast<const float*>(rank.round_state().data());
  Matrix basis;
  for (std::size_t j = 0; j < columns; ++j) {
    const float* first = values + j * ((shape.rows + 63) / 64 * 64);
    basis.emplace_back(first, first + shape.rows);
  }
  return basis;
}

double largest_defect(const Matrix& basis) {
  double most = 0;
  for (std::size_t a = 0; a < basis.size(); ++a)
    for (std::size_t b = 0; b <= a; ++b) {
      double product = a == b ? -1 : 0;
      for (std::size_t i = 0; i < basis[a].size(); ++i)
        product += double{basis[a][i]} * basis[b][i];
      most = std::max(most, std::fabs(product));
    }
  return most;
}

TEST(Lowrank, DirectionsAreOrthonormal) {
  for (const float scale : {1.0f, 0x1p-90f, 0x1p50f})
    for (const std::size_t rank : {1, 4, 8, 32}) {
      const Shape shape{300, 400};
      NativeRounds rounds = rounds_of("lowrank:rank=" + std::to_string(rank), shape,
                                      {.scale = scale, .contributions = 2});
      rounds.exchange();
      EXPECT_LT(largest_defect(round_state_basis(rounds.ranks[1], shape, rank)), 0x1p-20) << rank;
    }
}

TEST(Lowrank, ReconstructsMatricesBelowConfiguredRank) {
  const Shape shape{96, 200};
  for (const std::size_t rank : {1, 2}) {
    NativeRounds rounds = rounds_of("lowrank:rank=8+ef", shape, {.contributions = 1});
    const std::vector<float> one = of_rank(shape, rank, 5);
    rounds.ranks[0].set_gradient(one);
    rounds.ranks[0].set_residual(std::vector<float>(shape.count()));
    for (int step = 0; step < 3; ++step) {
      rounds.exchange();
      EXPECT_LT(distance(rounds.ranks[0].output(), one), 0x1p-18 * norm_of(one)) << step;
      EXPECT_LT(norm_of(rounds.ranks[0].residual_out()), 0x1p-18 * norm_of(one)) << step;
    }
  }
}

TEST(Lowrank, ResidualEqualsSentMinusDecoded) {
  for (const std::string spec : {"lowrank+ef", "lowrank:rank=2,values=bf16+ef"}) {
    const Shape shape{70, 130};
    NativeRounds rounds = rounds_of(spec, shape, {.contributions = 1});
    const CodecHarness& rank = rounds.ranks[0];
    for (int step = 0; step < 2; ++step) {
      rounds.exchange();
      const std::vector<float> p = rank.sent(), decoded = rank.output();
      const std::vector<float> residual = rank.residual_out();
      for (std::size_t i = 0; i < p.size(); ++i)
        ASSERT_EQ(residual[i], p[i] - decoded[i]) << spec << " " << i;
    }
  }
}

// The ranks' residuals add up to the missing values, with each rank's own factor.
TEST(Lowrank, ResultPlusResidualsEqualsSumOfRanks) {
  const Shape shape{70, 130};
  NativeRounds rounds = rounds_of("lowrank+ef", shape, {.contributions = 5});
  rounds.exchange({.encode_factor = 0.2f, .decode_factor = 5.0f});
  for (std::size_t i = 0; i < shape.count(); ++i) {
    double missing = -rounds.ranks[0].output()[i];
    for (const CodecHarness& rank : rounds.ranks)
      missing += double{rank.sent()[i]} - rank.residual_out()[i];
    ASSERT_NEAR(missing, 0, 2e-5) << i;
  }
}

TEST(Lowrank, WarmStartReducesError) {
  const Shape shape{96, 200};
  std::vector<float> gradient(shape.count());
  for (std::size_t j = 0; j < 12; ++j) {
    const std::vector<float> one = of_rank(shape, 1, 50 + 2 * j);
    for (std::size_t i = 0; i < one.size(); ++i)
      gradient[i] += std::ldexp(one[i], -static_cast<int>(j) / 2);
  }
  NativeRounds rounds = rounds_of("lowrank", shape, {.contributions = 1});
  rounds.ranks[0].set_gradient(gradient);
  rounds.exchange();
  const double cold = distance(rounds.ranks[0].output(), gradient);
  for (int step = 0; step < 10; ++step) rounds.exchange();
  const double warm = distance(rounds.ranks[0].output(), gradient);
  EXPECT_LT(warm, 0.9 * cold);
  rounds.ranks[0].set_memory(std::vector<float>(4 * shape.columns));
  rounds.exchange();
  EXPECT_EQ(distance(rounds.ranks[0].output(), gradient), cold);
}

TEST(Lowrank, ZeroGradientsGiveZerosAndKeepMemory) {
  const Shape shape{70, 130};
  NativeRounds rounds = rounds_of("lowrank+ef", shape, {.contributions = 2});
  rounds.exchange();
  const std::vector<float> memory = rounds.ranks[0].memory();
  for (CodecHarness& rank : rounds.ranks) {
    rank.set_gradient(std::vector<float>(shape.count()));
    rank.set_residual(std::vector<float>(shape.count()));
  }
  rounds.exchange();
  EXPECT_EQ(rounds.ranks[0].output(), std::vector<float>(shape.count()));
  EXPECT_EQ(rounds.ranks[0].residual_out(), std::vector<float>(shape.count()));
  EXPECT_EQ(rounds.ranks[0].memory(), memory);
}

TEST(Lowrank, NonFiniteValuePoisonsMatrixOnAllRanks) {
  const Shape shape{70, 130};
  for (const float bad : {std::nanf(""), -std::nanf("7"), INFINITY, -INFINITY})
    for_each_isa([&] {
      NativeRounds rounds = rounds_of("lowrank+ef", shape, {.contributions = 3});
      rounds.exchange();
      const std::vector<float> memory = rounds.ranks[0].memory();
      std::vector<float> gradient = rounds.ranks[1].gradient();
      gradient[777] = bad;
      rounds.ranks[1].set_gradient(gradient);
      rounds.exchange();
      for (const CodecHarness& rank : rounds.ranks) {
        EXPECT_TRUE(std::ranges::all_of(rank.output(), [](float v) { return std::isnan(v); }));
        EXPECT_EQ(rank.residual_out(), rank.residual_in());
        EXPECT_EQ(rank.memory(), memory);
      }
    });
}

}  // namespace
}  // namespace tersor::test
