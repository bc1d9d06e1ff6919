// Collectives on device memory: the same bits as on the host, over every transport.
#include "tests/device_comm/fabric.h"
#include "tests/device_comm/steps.h"

#include "kernels/device/device.h"

#include <cstring>
#include <mutex>

namespace tersor::test {
namespace {

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Library sums may differ in bits, but hardly in values.
void expect_near(const Values& found, const Values& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], wanted[i], 0.04 + 0.01 * std::abs(wanted[i])) << i;
}

std::string text_of(const Case& wanted, int ranks) {
  return wanted.codec + " " + std::string(algorithm_name(wanted.algorithm)) + ", " +
         std::to_string(wanted.count) + " values of " + std::string(dtype_name(wanted.dtype)) +
         ", " + std::to_string(ranks) + " ranks";
}

class CollectivesOnDevice : public OnDeviceFabric {
 protected:
  enum class Bits { kSame, kNear };

  std::vector<Values> on_devices(Steps steps, const Case& wanted, int ranks) const {
    std::vector<Values> all(static_cast<std::size_t>(ranks));
    run(ranks, [&](Transport& transport, StreamView stream) {
      all[static_cast<std::size_t>(transport.rank())] =
          steps(wanted, transport, {Memory::kDevice, stream});
    });
    return all;
  }

  void expect_as_on_hosts(Steps steps, const Case& wanted, int ranks, Bits bits = Bits::kSame) {
    SCOPED_TRACE(text_of(wanted, ranks));
    const auto found = on_devices(steps, wanted, ranks);
    const auto expected = on_hosts(steps, wanted, ranks);
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      if (bits == Bits::kNear)
        expect_near(found[rank], expected[rank]);
      else
        ASSERT_TRUE(same_bits(found[rank], expected[rank])) << "rank " << rank;
    }
  }
};

TEST_P(CollectivesOnDevice, AllreduceMatchesHostBits) {
  const Case cases[] = {
      {Algorithm::kTwoShot, "int8"},
      {Algorithm::kTwoShot, "int8+ef"},
      {Algorithm::kOneShot, "int8:rounding=stochastic+ef"},
      {Algorithm::kTwoShot, "int4:rounding=stochastic"},
      {Algorithm::kOneShot, "int4+ef"},
      {Algorithm::kTwoShot, "hadamard+ef"},
      {Algorithm::kOneShot, "hadamard:bits=1"},
      {Algorithm::kTwoShot, "blocktopk:density=0.05+ef"},
      {Algorithm::kOneShot, "topk:density=0.05+ef"},
      {Algorithm::kTwoShot, "bf16"},
      {Algorithm::kTwoShot, "bf16:rounding=stochastic+ef"},
      {Algorithm::kOneShot, "none"},
      {Algorithm::kAuto, "int8"},
  };
  for (Case wanted : cases)
    for (const int ranks : {2, 3})
      for (const std::size_t count : {0ul, 1ul, 257ul, 5003ul}) {
        wanted.count = count;
        expect_as_on_hosts(allreduce_steps, wanted, ranks);
        if (HasFatalFailure()) return;
      }
}

TEST_P(CollectivesOnDevice, SixteenBitGradientsMatchHostBits) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16})
    for (const char* codec :
         {"int8", "int4+ef", "hadamard:bits=3+ef", "blocktopk:values=int4+ef", "topk:density=0.1"})
      expect_as_on_hosts(allreduce_steps, {.codec = codec, .count = 3001, .dtype = dtype}, 3);
}

TEST_P(CollectivesOnDevice, FourRanksAndOne) {
  for (const int ranks : {1, 4})
    expect_as_on_hosts(allreduce_steps, {.codec = "int8+ef", .count = 9001}, ranks);
}

TEST_P(CollectivesOnDevice, NativeSums) {
  const Bits bits = GetParam().own_sums ? Bits::kSame : Bits::kNear;
  for (const char* codec : {"none", "bf16", "f16"})
    for (const std::size_t count : {1ul, 600ul, 7001ul})
      expect_as_on_hosts(allreduce_steps,
                         {.algorithm = Algorithm::kNative, .codec = codec, .count = count}, 3,
                         bits);
}

// Two rounds or, with a fixed scale, one. Sums are exact, so the bits equal the host's bits for
// every order of additions.
TEST_P(CollectivesOnDevice, IntsumMatchesHostBits) {
  for (const char* codec : {"intsum", "intsum:bits=16+ef", "intsum:bits=32,rounding=stochastic",
                            "intsum:scale=0.05", "intsum:bits=16,scale=0.001+ef"})
    for (const std::size_t count : {1ul, 600ul, 7001ul})
      expect_as_on_hosts(allreduce_steps, {.codec = codec, .count = count}, 3);
  expect_as_on_hosts(allreduce_steps,
                     {.algorithm = Algorithm::kHierarchical,
                      .codec = "intsum:bits=16",
                      .count = 6007,
                      .hosts = {0, 0, 1, 1}},
                     4);
}

// Ranks of one host first, a host with a single rank, and hosts with unequal numbers of ranks.
TEST_P(CollectivesOnDevice, HierarchicalAllreduceMatchesHostBits) {
  for (const std::vector<int>& hosts :
       {std::vector{0, 0, 1, 1}, std::vector{0, 1, 0}, std::vector{0, 0, 0}})
    for (const char* codec : {"int8", "int4+ef"}) {
      const bool alone = hosts.back() == hosts.front() && hosts[1] == hosts[0];
      if (alone && !GetParam().own_sums) continue;
      expect_as_on_hosts(allreduce_steps,
                         {.algorithm = Algorithm::kHierarchical,
                          .codec = alone ? "int8" : codec,
                          .count = 6007,
                          .hosts = hosts},
                         static_cast<int>(hosts.size()));
    }
}

TEST_P(CollectivesOnDevice, ReduceScatterAndAllgatherMatchHostBits) {
  for (const char* codec : {"int8", "topk:density=0.1", "none"})
    for (const std::size_t count : {1ul, 2500ul}) {
      expect_as_on_hosts(reduce_scatter_steps, {.codec = codec, .count = count}, 3);
      expect_as_on_hosts(allgather_steps, {.codec = codec, .count = count}, 3);
    }
}

TEST_P(CollectivesOnDevice, HierarchicalAndGridShardsMatchHostBits) {
  for (const char* codec : {"int8", "topk:density=0.1", "none"})
    for (const Steps steps : {reduce_scatter_steps, allgather_steps}) {
      Case wanted{.codec = codec, .count = 2500, .dims = {2, 2}};
      expect_as_on_hosts(steps, wanted, 4);
      wanted.algorithm = Algorithm::kHierarchical;
      wanted.hosts = {0, 1, 1, 0};
      expect_as_on_hosts(steps, wanted, 4);
    }
}

TEST_P(CollectivesOnDevice, AllToAllMatchesHostBits) {
  for (const char* codec : {"int8:rounding=stochastic", "int4", "hadamard", "blocktopk:density=0.1",
                            "topk:density=0.1", "bf16", "none"})
    for (const std::size_t columns : {5ul, 300ul, 512ul})
      expect_as_on_hosts(all_to_all_steps, {.codec = codec, .count = columns, .steps = 4}, 3);
}

TEST_P(CollectivesOnDevice, HierarchicalAndGridAllToAllMatchesHostBits) {
  for (const std::size_t columns : {5ul, 512ul}) {
    Case wanted{.codec = "int8", .count = columns, .steps = 4, .dims = {2, 2}};
    expect_as_on_hosts(all_to_all_steps, wanted, 4);
    wanted.algorithm = Algorithm::kHierarchical;
    wanted.hosts = {0, 1, 1, 0};
    expect_as_on_hosts(all_to_all_steps, wanted, 4);
  }
}

// Messages in both directions at once, with the results of a broadcast.
TEST_P(CollectivesOnDevice, MessagesBetweenTwoRanksArriveOrAreRejected) {
  run(2, [](Transport& transport, StreamView stream) {
    const Location device{Memory::kDevice, stream};
    const int own = transport.rank(), peer = 1 - own;
    const CollectiveOptions options{.codec = "int8"};
    PlacedValues sent(5003, Dtype::kF32, device), came(5003, Dtype::kF32, device);
    if (transport.traits().queues) {
      EXPECT_THROW(send(transport, sent.span(), peer, options, stream), InvalidArgumentError);
      EXPECT_THROW(receive(transport, came.span(), peer, options, stream), InvalidArgumentError);
      return;
    }
    const auto values_of = [](int rank) {
      return testing::gaussian(5003, static_cast<std::uint64_t>(rank));
    };
    sent.write(values_of(own));
    Sending receiving = receive(transport, came.span(), peer, options, stream);
    send(transport, sent.span(), peer, options, stream).wait();
    receiving.wait();
    for (const int root : {0, 1}) {
      sent.write(values_of(root));
      broadcast(transport, sent.span(), root, options, stream);
      if (root == peer) EXPECT_TRUE(same_bits(came.read(), sent.read()));
    }
  });
}

TEST_P(CollectivesOnDevice, RootedCollectivesMatchHostBits) {
  for (const char* codec : {"none", "int8:rounding=stochastic", "blocktopk:density=0.05"})
    for (const std::size_t count : {0ul, 1ul, 2500ul, 9001ul})
      for (const int ranks : {1, 2, 4})
        expect_as_on_hosts(rooted_steps, {.codec = codec, .count = count}, ranks);
}

TEST_P(CollectivesOnDevice, GridAllreduceMatchesHostBits) {
  for (const std::string codec : {"int8+ef", "hadamard:bits=1", "blocktopk:density=0.05+ef"})
    expect_as_on_hosts(
        allreduce_steps,
        {.algorithm = Algorithm::kTwoShot, .codec = codec, .count = 20'003, .dims = {2, 2}}, 4);
}

TEST_P(CollectivesOnDevice, ChunkingDoesNotChangeBits) {
  const Case whole{.algorithm = Algorithm::kTwoShot, .codec = "int8+ef", .count = 9001};
  Case cut = whole;
  cut.chunk_count = 512;
  const auto a = on_devices(allreduce_steps, whole, 2), b = on_devices(allreduce_steps, cut, 2);
  for (std::size_t rank = 0; rank < a.size(); ++rank) EXPECT_TRUE(same_bits(a[rank], b[rank]));
}

// Mixed memory is refused before anything is sent, and the transport still works.
TEST_P(CollectivesOnDevice, RejectsMixedMemory) {
  run(2, [](Transport& transport, StreamView stream) {
    const Location device{Memory::kDevice, stream};
    PlacedValues gradient(1000, Dtype::kF32, device), shard(500, Dtype::kF32, {});
    const PlacedState state({.codec = "int8+ef", .count = 1000}, transport, {});
    EXPECT_THROW(allreduce(transport, gradient.span(),
                           {.codec = "int8+ef", .state = &state.state()}, stream),
                 InvalidArgumentError);
    EXPECT_THROW(
        reduce_scatter(transport, gradient.span(), shard.span(), {.codec = "int8"}, stream),
        InvalidArgumentError);
    EXPECT_NO_THROW(allreduce(transport, gradient.span(), {.codec = "int8"}, stream));
  });
}

TEST_P(CollectivesOnDevice, AutoTriesAndSettles) {
  std::mutex mutex;
  std::vector<Values> results;
  run(2, [&](Transport& transport, StreamView stream) {
    Tuner tuner(transport, {.memory = Memory::kDevice});
    PlacedValues gradient(3000, Dtype::kF32, {Memory::kDevice, stream});
    for (int call = 0; call < 200 && !tuner.settled(Dtype::kF32, 3000); ++call)
      allreduce(transport, gradient.span(), {.codec = "auto", .tuner = &tuner}, stream);
    EXPECT_TRUE(tuner.settled(Dtype::kF32, 3000));
    gradient.write(testing::gaussian(3000, static_cast<std::uint64_t>(transport.rank())));
    allreduce(transport, gradient.span(), {.codec = "auto", .tuner = &tuner}, stream);
    const std::lock_guard lock(mutex);
    results.push_back(gradient.read());
  });
  EXPECT_TRUE(same_bits(results.front(), results.back()));
}

INSTANTIATE_TEST_SUITE_P(Fabrics, CollectivesOnDevice, ::testing::Values(fabrics().front()),
                         fabric_name);

}  // namespace
}  // namespace tersor::test
