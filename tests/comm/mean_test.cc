// A mean lies within the range of its inputs. The mean of finite values is finite, and the mean of
// equal values is the same value. Both hold at both ends of a type's range, for every algorithm and
// every number of parts.
#include "kernels/scalar/convert.h"
#include "tests/comm/ranks.h"
#include "tests/support/specs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

namespace tersor {
namespace {

constexpr std::size_t kMeanCount = 1500;  // three units: with many ranks, some ranks own nothing

struct MeanCase {
  std::string name;
  Algorithm algorithm = Algorithm::kAuto;
  int ranks_per_host = 0;
};

std::ostream& operator<<(std::ostream& out, const MeanCase& tested) { return out << tested.name; }

std::vector<int> hosts_of(const MeanCase& tested, int ranks) {
  std::vector<int> hosts;
  for (int rank = 0; tested.ranks_per_host != 0 && rank < ranks; ++rank)
    hosts.push_back(rank / tested.ranks_per_host);
  return hosts;
}

/// The allowed relative error of a mean of equal values. f32 sums are rounded. Raw bf16 sums are
/// rounded at each hop.
double allowed(const std::string& codec, Dtype dtype) {
  if (codec == "bf16" || dtype == Dtype::kBf16) return 0.1;
  if (codec == "none" && dtype == Dtype::kF16) return 0;
  return codec == "none" ? 1e-5 : 0x1p-10;
}

/// Expects `mean_of(transport, values)` to return the mean of `value`, converted to T, on every
/// rank.
template <typename T, typename MeanOf>
void expect_mean(int ranks, float value, double allowed, const MeanOf& mean_of) {
  const double wanted = kernels::to_f32(kernels::from_f32<T>(value));
  run_ranks(ranks, {}, [&](Transport& transport) {
    std::vector<T> values(kMeanCount, kernels::from_f32<T>(value));
    mean_of(transport, values);
    for (std::size_t i = 0; i < values.size(); i += 499)
      ASSERT_NEAR(kernels::to_f32(values[i]), wanted, std::fabs(wanted) * allowed)
          << dtype_name(DtypeOf<T>::value) << " " << value;
  });
}

class Mean : public ::testing::TestWithParam<std::tuple<MeanCase, int>> {
 protected:
  template <typename T>
  void expect(const std::string& codec, float value) {
    const auto& [tested, ranks] = GetParam();
    const std::vector<int> hosts = hosts_of(tested, ranks);
    const CollectiveOptions options{.codec = codec,
                                    .reduction = Reduction::kMean,
                                    .algorithm = tested.algorithm,
                                    .hosts = hosts};
    SCOPED_TRACE(codec);
    expect_mean<T>(ranks, value, allowed(codec, DtypeOf<T>::value),
                   [&](Transport& transport, std::vector<T>& values) {
                     allreduce(transport, values, options);
                   });
  }
};

TEST_P(Mean, PreservesEqualValues) {
  for (const std::string codec : {"none", "f16"})
    for (const float value : {65504.0f, -60000.0f, 0x1p-24f, 3 * 0x1p-24f, 0.3f})
      expect<F16>(codec, value);
  for (const std::string codec : {"none", "bf16"})
    for (const float value : {3e38f, 1e-30f}) {
      expect<Bf16>(codec, value);
      expect<float>(codec, value);
    }
  for (const float value : {60000.0f, 0x1p-10f}) expect<float>("f16", value);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Mean,
    ::testing::Combine(::testing::Values(MeanCase{"auto"}, MeanCase{"native", Algorithm::kNative},
                                         MeanCase{"two-shot", Algorithm::kTwoShot},
                                         MeanCase{"one-shot", Algorithm::kOneShot},
                                         MeanCase{"by hosts of two", Algorithm::kHierarchical, 2},
                                         MeanCase{"by hosts of three", Algorithm::kHierarchical,
                                                  3}),
                       ::testing::Values(2, 3, 4, 7, 37, 64)));

using Dims = std::vector<int>;

TEST(MeanOfParts, GridsPreserveEqualValues) {
  for (const auto& [ranks, dims] :
       {std::pair{64, Dims{4, 4, 4}}, {64, Dims{8, 8}}, {37, Dims{18, 2}}, {13, Dims{4, 3}}})
    for (const float value : {65504.0f, 0x1p-24f})
      expect_mean<F16>(ranks, value, 0, [&](Transport& transport, std::vector<F16>& values) {
        allreduce(transport, values,
                  {.codec = "none",
                   .reduction = Reduction::kMean,
                   .algorithm = Algorithm::kTwoShot,
                   .dims = dims});
      });
}

TEST(MeanOfParts, ReduceAndReduceScatterPreserveEqualValues) {
  for (const float value : {65504.0f, 0x1p-24f}) {
    const CollectiveOptions mean{.codec = "none", .reduction = Reduction::kMean};
    expect_mean<F16>(8, value, 0, [&](Transport& transport, std::vector<F16>& values) {
      const std::vector<F16> own = values;
      reduce(transport, own, transport.rank() == 5 ? ValueSpan(values) : ValueSpan(), 5, mean);
    });
    for (const Dims& dims : {Dims{}, Dims{4, 2}})
      expect_mean<F16>(8, value, 0, [&](Transport& transport, std::vector<F16>& values) {
        const std::vector<F16> whole(8 * values.size(), values.front());
        CollectiveOptions options = mean;
        options.dims = dims;
        reduce_scatter(transport, whole, values, options);
      });
    expect_mean<F16>(8, value, 0, [&](Transport& transport, std::vector<F16>& values) {
      const std::vector<F16> whole(8 * values.size(), values.front());
      const std::vector<int> hosts{0, 0, 0, 0, 1, 1, 1, 1};
      CollectiveOptions options = mean;
      options.algorithm = Algorithm::kHierarchical;
      options.hosts = hosts;
      reduce_scatter(transport, whole, values, options);
    });
  }
}

TEST(MeanOfParts, ReducerPreservesEqualValues) {
  for (const float value : {65504.0f, 0x1p-24f})
    expect_mean<F16>(5, value, 0, [&](Transport& transport, std::vector<F16>& values) {
      GradientReducer reducer(transport, {.rules = {{"*", "none"}}});
      reducer.add("a", values);
      reducer.ready("a", values);
      reducer.wait();
    });
}

// hadamard's error may push a decoded value several times beyond the encoded values.
TEST(MeanOfParts, StaysFiniteForEveryCodec) {
  std::vector<std::string> specs = test::framed_specs();
  for (const std::string& spec : specs) {
    if (spec.find("+ef") != std::string::npos) continue;
    run_ranks(4, {}, [&](Transport& transport) {
      std::vector<F16> halves;
      std::vector<float> wide;
      for (const float value : testing::gaussian(kMeanCount, 3)) {
        halves.push_back(kernels::from_f32<F16>(std::copysign(5000.0f, value)));
        wide.push_back(std::copysign(1e35f, value));
      }
      for (const Algorithm algorithm : {Algorithm::kTwoShot, Algorithm::kOneShot}) {
        const bool adds = test::offers(spec, Exchange::kTwoShot);
        if (algorithm == Algorithm::kTwoShot && !adds) continue;
        const CollectiveOptions options{
            .codec = spec, .reduction = Reduction::kMean, .algorithm = algorithm};
        std::vector<F16> narrow = halves;
        std::vector<float> values = wide;
        allreduce(transport, narrow, options);
        if (!spec.starts_with("f16")) allreduce(transport, values, options);
        for (std::size_t i = 0; i < kMeanCount; ++i) {
          ASSERT_TRUE(std::isfinite(kernels::to_f32(narrow[i]))) << spec << " " << i;
          ASSERT_TRUE(std::isfinite(values[i])) << spec << " " << i;
        }
      }
    });
  }
}

}  // namespace
}  // namespace tersor
