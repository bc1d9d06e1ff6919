// Over NCCL, every rank gets the same bits as with CPU threads.

#include "tests/gpu/nccl/reduction.h"
#include "tests/support/grid.h"

#include <span>
#include <string>
#include <string_view>

namespace tersor::test {
namespace {

const std::size_t kCounts[] = {0, 1, 257, 100'003, grid_is_small() ? 300'001u : 1'000'001u};
constexpr std::string_view kDense[] = {"none", "bf16", "int8:rounding=stochastic", "int4", "int8"};
constexpr std::string_view kSparse[] = {"topk:density=0.01"};  // without two-shot

/// Tests codecs with both dtypes and all counts for one algorithm.
void check_all(const RankIdentity& identity, Algorithm algorithm,
               std::span<const std::string_view> codecs, const std::vector<int>& hosts = {}) {
  const auto owned_transport = make_nccl_transport(meet(identity));
  Transport& transport = *owned_transport;
  const Stream stream;
  for (const std::string_view codec : codecs)
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16})
      for (const std::size_t count : kCounts) {
        const Case wanted{.algorithm = algorithm,
                          .codec = std::string(codec),
                          .count = count,
                          .dtype = dtype,
                          .hosts = hosts};
        RepeatedAllreduce on_device(wanted, transport, {Memory::kDevice, stream.view()});
        on_device.call();
        on_device.require_bits(reduced_on_cpu(wanted, identity.ranks).front());
      }
}

const Registered kTwoShot("two_shot", [](const RankIdentity& identity) {
  check_all(identity, Algorithm::kTwoShot, kDense);
});
const Registered kOneShot("one_shot", [](const RankIdentity& identity) {
  check_all(identity, Algorithm::kOneShot, kDense);
  check_all({identity.rank, identity.ranks, identity.file.string() + "-top-k"}, Algorithm::kOneShot,
            kSparse);
});

/// At most two ranks per host, so the order of NCCL's sum within a host is irrelevant. Few codecs,
/// because each call creates communicators.
const Registered kHierarchical("hierarchical", [](const RankIdentity& identity) {
  std::vector<int> hosts;
  for (int rank = 0; rank < identity.ranks; ++rank) hosts.push_back(rank * 2 / identity.ranks);
  check_all(identity, Algorithm::kHierarchical, std::span(kDense).last(1), hosts);
});

/// NCCL's own sum of two f32 values is independent of the order.
const Registered kNative("native", [](const RankIdentity& identity) {
  const auto owned_transport = make_nccl_transport(meet(identity));
  Transport& transport = *owned_transport;
  const Stream stream;
  for (const std::size_t count : kCounts) {
    const Case wanted{.algorithm = Algorithm::kNative, .count = count};
    RepeatedAllreduce on_device(wanted, transport, {Memory::kDevice, stream.view()});
    on_device.call();
    on_device.require_bits(reduced_on_cpu(wanted, identity.ranks).front());
  }
});

class NcclAllreduce : public OverNccl, public ::testing::WithParamInterface<int> {};

TEST_P(NcclAllreduce, TwoShotHasTheCpusBits) { expect_passes(kTwoShot, GetParam()); }
TEST_P(NcclAllreduce, OneShotHasTheCpusBits) { expect_passes(kOneShot, GetParam()); }
TEST_P(NcclAllreduce, HierarchicalHasTheCpusBits) { expect_passes(kHierarchical, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Ranks, NcclAllreduce, ::testing::Values(2, 4));

class NcclNative : public OverNccl {};

TEST_F(NcclNative, SumsOfTwoHaveTheCpusBits) { expect_passes(kNative, 2); }

}  // namespace
}  // namespace tersor::test
