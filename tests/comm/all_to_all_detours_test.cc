// all_to_all with the hierarchical algorithm and on grids: the same values as with the direct
// algorithm.
#include "tests/comm/deals.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tersor::testing {
namespace {

/// Two hosts with half of the ranks each, either consecutive (`behind`) or interleaved
/// (`alternately`); and a grid of the same shape.
struct Detours {
  explicit Detours(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      behind.push_back(rank * 2 / ranks);
      alternately.push_back(rank % 2);
    }
    dims = {ranks / 2, 2};
  }
  std::vector<CollectiveOptions> of(const std::string& codec,
                                    CollectiveWorkspace* workspace) const {
    CollectiveOptions options{.codec = codec, .workspace = workspace};
    std::vector<CollectiveOptions> all(3, options);
    all[0].algorithm = all[1].algorithm = Algorithm::kHierarchical;
    all[0].hosts = behind;
    all[1].hosts = alternately;
    all[2].dims = dims;
    return all;
  }

  std::vector<int> behind, alternately, dims;
};

// The sender encodes each row once, so every algorithm delivers the same bits.
TEST(AllToAllDetours, MatchDirectAlgorithmBitwise) {
  for (const int ranks : {4, 6, 8})
    for (const std::string codec : {"none", "bf16", "int8:rounding=stochastic", "topk:density=0.2"})
      run_ranks(ranks, {}, [&](Transport& transport) {
        std::vector<CollectiveWorkspace> workspaces(3);
        for (const std::size_t columns : {5u, 256u})
          for (const Deal& deal :
               {random_deal(ranks, 1), random_deal(ranks, 2), all_to_one(ranks, 1),
                Deal(index(ranks), Counts(index(ranks)))}) {
            const Values directly = dealt(transport, deal, columns, {.codec = codec});
            const Detours detours(ranks);
            for (std::size_t i = 0; i < 3; ++i)
              EXPECT_EQ(dealt(transport, deal, columns, detours.of(codec, &workspaces[i])[i]),
                        directly)
                  << codec << ", " << i;
          }
      });
}

// A rank sends one message to each neighbor and one message, with its neighbors' rows for the same
// host, to each other host. Each neighbor first receives the row counts.
TEST(AllToAllDetours, SendTwoMessagesPerNeighborAndOnePerOtherHost) {
  run_ranks(8, {}, [&](Transport& transport) {
    const Detours detours(8);
    const Deal deal(8, Counts(8, 2));
    for (const CollectiveOptions& options : detours.of("int8", nullptr)) {
      dealt(transport, deal, 256, options);
      CollectiveWorkspace workspace;
      CollectiveOptions again = options;
      again.workspace = &workspace;
      dealt(transport, deal, 256, again);
      const std::uint64_t before = transport.counters().sent_messages;
      dealt(transport, deal, 256, again);
      EXPECT_EQ(transport.counters().sent_messages - before, 3u + 3u + 1u);
    }
  });
}

TEST(AllToAllDetours, RejectInvalidDimsAndUnevenHosts) {
  run_ranks(8, {}, [&](Transport& transport) {
    const Deal deal(8, Counts(8, 1));
    const auto said = [&](std::vector<int> hosts, std::vector<int> dims) {
      CollectiveOptions options{.codec = "int8", .hosts = hosts, .dims = dims};
      if (!hosts.empty()) options.algorithm = Algorithm::kHierarchical;
      try {
        dealt(transport, deal, 4, options);
      } catch (const InvalidArgumentError& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    EXPECT_EQ(said({}, {2, 2, 2}), "dims are 2 x 2 x 2: give at most two for all_to_all");
    EXPECT_NE(said({}, {3, 2}), "");
    EXPECT_EQ(
        said({0, 0, 0, 1, 1, 1, 1, 1}, {}),
        "all_to_all needs the same number of ranks on each host, but the hosts have 3, 5: choose "
        "an algorithm other than hierarchical, or leave hosts out");
    EXPECT_EQ(said({0, 0, 0, 0, 1, 1, 1, 1}, {}), "");
  });
}

// Ranks 0 and 3 are on different hosts. Forwarding ranks carry the rows of rank 0 and must not be
// blamed.
TEST(AllToAllDetours, SplitMismatchFailsOnBothRanks) {
  const Detours detours(4);
  for (std::size_t tested = 0; tested < 3; ++tested)
    for (const std::size_t rows : {0u, 3u, 5u}) {
      std::vector<std::string> said(4);
      run_ranks(4, {}, [&](Transport& transport) {
        Counts sent(4, 4), taken(4, 4);
        if (transport.rank() == 0) sent[3] = rows;
        const Values input(sum(sent) * 10, 1.0f);
        Values output(16 * 10, 2.0f);
        try {
          all_to_all(transport, input, output, 10, {.sent = sent, .received = taken},
                     detours.of("int8", nullptr)[tested]);
        } catch (const Error& error) {
          said[index(transport.rank())] = error.what();
        }
      });
      for (const int rank : {0, 3}) {
        EXPECT_NE(said[index(rank)], "") << rows;
        EXPECT_EQ(said[index(rank)].find("within"), std::string::npos) << said[index(rank)];
      }
    }
}

}  // namespace
}  // namespace tersor::testing
