// all_to_all: independently encoded rows, and mismatched splits.
#include "tests/comm/deals.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>

namespace tersor::testing {
namespace {

/// Encodes and decodes one row in isolation.
Values decoded(const Codec& codec, const Values& row) {
  const Segment segment{.count = row.size()};
  const Plan plan = codec.plan({.segments = {&segment, 1}});
  const Buffer frame(plan.frame_bytes), workspace(plan.workspace_bytes);
  Values output(row.size());
  const ConstValueSpan from(row);
  const ValueSpan to(output);
  const ConstByteSpan bytes = frame.span();
  codec.encode({.segments = {&segment, 1},
                .gradients = {&from, 1},
                .execution = {.workspace = workspace.span()}},
               frame.span());
  codec.decode({.segments = {&segment, 1},
                .frames = {&bytes, 1},
                .outputs = {&to, 1},
                .execution = {.workspace = workspace.span()}});
  return output;
}

/// The expected output of rank `to`: each row passed through `made_of`, or with `joined` all rows
/// of a sender together.
Values wanted(const Deal& deal, int to, std::size_t columns,
              const std::function<Values(const Values&)>& made_of, bool joined = false) {
  Values all;
  for (int from = 0; from < static_cast<int>(deal.size()); ++from) {
    const Values rows = rows_of(deal, from, columns);
    const Counts& sent = deal[index(from)];
    const std::size_t before = std::accumulate(sent.begin(), sent.begin() + to, std::size_t{0});
    const std::size_t rows_at_once = joined ? std::max<std::size_t>(1, sent[index(to)]) : 1;
    for (std::size_t row = before; row < before + sent[index(to)]; row += rows_at_once) {
      const auto first = rows.begin() + static_cast<std::ptrdiff_t>(row * columns);
      const auto count = static_cast<std::ptrdiff_t>(rows_at_once * columns);
      const Values made = made_of({first, first + count});
      all.insert(all.end(), made.begin(), made.end());
    }
  }
  return all;
}

/// Length in rows, at least 1.
std::size_t longest_shard(const Deal& deal, int rank) {
  return std::max({std::size_t{1}, std::ranges::max(deal[index(rank)]),
                   std::ranges::max(received(deal, rank))});
}

class AllToAll : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  std::vector<Deal> deals() const {
    return {random_deal(ranks(), 1), random_deal(ranks(), 2), all_to_one(ranks(), ranks() - 1),
            Deal(index(ranks()), Counts(index(ranks())))};
  }
};

// A row's result is independent of the other rows. Rows too narrow for encoding are joined.
TEST_P(AllToAll, RowsMatchCodecRoundTrip) {
  for (const std::string codec :
       {"none", "bf16", "int8", "int4", "topk:density=0.2", "blocktopk:density=0.2"})
    for (const std::size_t columns : {1u, 5u, 256u, 768u, 4096u})
      for (const Deal& deal : deals())
        run_ranks(ranks(), {}, [&](Transport& transport) {
          const auto made = make_codec(codec);
          const bool alone = transport.ranks() == 1;  // a single rank encodes nothing
          const Values found = dealt(transport, deal, columns, {.codec = codec});
          const auto made_of = [&](const Values& row) { return alone ? row : decoded(*made, row); };
          EXPECT_EQ(found, wanted(deal, transport.rank(), columns, made_of, columns < 8))
              << codec << ", columns " << columns;
        });
}

// The random numbers depend on the position of a row, so rows match approximately.
TEST_P(AllToAll, RandomCodecsStayWithinErrorBound) {
  for (const auto& [codec, error] :
       {std::pair("int8:rounding=stochastic", 2e-4), {"hadamard:bits=4", 0.05}})
    for (const std::size_t columns : {200u, 512u})
      run_ranks(ranks(), {}, [&, codec = codec, error = error](Transport& transport) {
        const Deal deal = random_deal(transport.ranks(), 3);
        const Values found = dealt(transport, deal, columns, {.codec = codec, .seed = 5});
        const Values exact =
            wanted(deal, transport.rank(), columns, [](const Values& row) { return row; });
        ASSERT_EQ(found.size(), exact.size());
        EXPECT_LE(squared_error(found, {exact.begin(), exact.end()}), error) << codec;
      });
}

TEST_P(AllToAll, DefaultSplitsAreEqual) {
  constexpr std::size_t kColumns = 64, kRows = 3;
  const Deal deal(index(ranks()), Counts(index(ranks()), kRows));
  run_ranks(ranks(), {}, [&](Transport& transport) {
    Values output(index(ranks()) * kRows * kColumns);
    all_to_all(transport, rows_of(deal, transport.rank(), kColumns), output, kColumns, {},
               {.codec = "none"});
    EXPECT_EQ(output, dealt(transport, deal, kColumns, {.codec = "none"}));
  });
}

// Changed splits reuse the prepared buffers.
TEST_P(AllToAll, WorkspaceIsReusableAcrossSplits) {
  run_ranks(ranks(), {}, [&](Transport& transport) {
    CollectiveWorkspace workspace;
    for (const std::size_t columns : {512u, 100u})
      for (int iteration = 0; iteration < 2; ++iteration)
        for (const Deal& deal : deals())
          EXPECT_EQ(dealt(transport, deal, columns, {.codec = "int8", .workspace = &workspace}),
                    dealt(transport, deal, columns, {.codec = "int8"}));
  });
}

// Pieces of few rows, a different number of pieces per rank, and a rank without rows: the same
// bits.
TEST_P(AllToAll, ChunkedRowsMatchUnchunkedRows) {
  for (const std::string codec : {"none", "int8:rounding=stochastic", "hadamard:bits=4",
                                  "topk:density=0.2", "blocktopk:density=0.2"})
    for (const std::size_t columns : {3u, 100u, 256u, 768u})
      for (const Deal& deal : deals())
        run_ranks(ranks(), {}, [&](Transport& transport) {
          CollectiveStatistics statistics;
          const Values found =
              dealt(transport, deal, columns,
                    {.codec = codec, .chunk_count = 512, .statistics = &statistics});
          EXPECT_EQ(found, dealt(transport, deal, columns, {.codec = codec}))
              << codec << ", columns " << columns;
          if (columns == 768 && transport.ranks() > 1)
            EXPECT_EQ(statistics.chunks, longest_shard(deal, transport.rank()));
        });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AllToAll, ::testing::Values(1, 2, 3, 4, 8));

TEST(AllToAllRows, RowOrderChangesBitsOnlyForHadamard) {
  constexpr std::size_t kColumns = 300, kRows = 12;
  for (const std::string codec : {"int8", "topk:density=0.1", "hadamard:bits=4"}) {
    Counts order(kRows);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937_64(3));
    run_ranks(2, {}, [&](Transport& transport) {
      const Values rows = gaussian(kRows * kColumns, index(transport.rank()));
      Values moved(rows.size()), plain(rows.size()), after(rows.size());
      const auto move_row = [&](const Values& from, Values& to, std::size_t at, std::size_t row) {
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(row * kColumns), kColumns,
                    to.begin() + static_cast<std::ptrdiff_t>(at * kColumns));
      };
      const Counts all_to_next = transport.rank() == 0 ? Counts{0, kRows} : Counts{kRows, 0};
      const Splits splits{.sent = all_to_next, .received = all_to_next};
      for (std::size_t i = 0; i < kRows; ++i) move_row(rows, moved, i, order[i]);
      all_to_all(transport, rows, plain, kColumns, splits, {.codec = codec});
      all_to_all(transport, moved, after, kColumns, splits, {.codec = codec});
      Values expected(rows.size());
      for (std::size_t i = 0; i < kRows; ++i) move_row(plain, expected, i, order[i]);
      if (codec == "hadamard:bits=4")  // the rotation depends on the position
        EXPECT_NE(after, expected);
      else
        EXPECT_EQ(after, expected) << codec;
    });
  }
}

// Stochastic rounding errors average out only with different random numbers.
TEST(AllToAllRows, EachPeerPairUsesDifferentRandomNumbers) {
  constexpr std::size_t kColumns = 512;
  std::vector<Values> found(3);
  run_ranks(3, {}, [&](Transport& transport) {
    const Values row = gaussian(kColumns, 1);
    Values rows = row, output(3 * kColumns);
    for (int copies = 1; copies < 3; ++copies) rows.insert(rows.end(), row.begin(), row.end());
    all_to_all(transport, rows, output, kColumns, {}, {.codec = "int8:rounding=stochastic"});
    found[index(transport.rank())] = output;
  });
  const auto row_of = [&](std::size_t from, std::size_t to) {
    const auto first = found[to].begin() + static_cast<std::ptrdiff_t>(from * kColumns);
    return Values(first, first + static_cast<std::ptrdiff_t>(kColumns));
  };
  for (std::size_t i = 0; i < 9; ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(row_of(i / 3, i % 3), row_of(j / 3, j % 3));
}

TEST(AllToAllBytes, MatchEncodedSizeWithOneMessagePerPeer) {
  constexpr std::size_t kColumns = 512, kRows = 100;
  run_ranks(4, {}, [&](Transport& transport) {
    const Values input = gaussian(4 * kRows * kColumns, 1);
    Values output(input.size());
    CollectiveStatistics statistics;
    const std::uint64_t before = transport.counters().sent_messages;
    all_to_all(transport, input, output, kColumns, {},
               {.codec = "int8", .statistics = &statistics});
    EXPECT_EQ(transport.counters().sent_messages - before, 3u);
    const std::size_t frame = 64 + kRows * kColumns + kRows * kColumns / 256 * 4;
    EXPECT_NEAR(static_cast<double>(statistics.sent_bytes), 3.0 * static_cast<double>(frame),
                3 * 200.0);
    EXPECT_EQ(statistics.gradient_bytes, input.size() * sizeof(float));
  });
}

// Encoded narrow rows cost no more bytes than the raw values.
TEST(AllToAllBytes, NarrowRowsUseFewerBytesThanRawValues) {
  constexpr std::size_t kValues = 3 << 14;
  for (const std::string codec :
       {"bf16", "int8", "int4", "hadamard:bits=4", "topk:density=0.1", "blocktopk:density=0.1"})
    for (const std::size_t columns : {1u, 2u, 3u, 8u, 16u, 48u})
      for (const std::size_t chunk_count : {std::size_t{1} << 12, std::size_t{1} << 20})
        run_ranks(2, {}, [&](Transport& transport) {
          const std::size_t rows = 2 * kValues / columns, fewer = rows / 4;
          const Counts sent =
              transport.rank() == 0 ? Counts{fewer, rows - fewer} : Counts{rows - fewer, fewer};
          const Values input = gaussian(rows * columns, index(transport.rank()));
          Values output(input.size());
          CollectiveStatistics statistics;
          const Splits splits{.sent = sent, .received = sent};
          all_to_all(transport, input, output, columns, splits,
                     {.codec = codec, .chunk_count = chunk_count, .statistics = &statistics});
          EXPECT_LT(statistics.sent_bytes, (rows - fewer) * columns * sizeof(float))
              << codec << ", columns " << columns;
        });
}

std::string refused(const std::function<void(Transport&, const Values&, Values&)>& call) {
  std::string said;
  run_ranks(2, {}, [&](Transport& transport) {
    const Values input(80, 1.0f);
    Values output(80, 2.0f);
    try {
      call(transport, input, output);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgumentError& error) {
      if (transport.rank() == 1) said = error.what();
    }
    EXPECT_EQ(output, Values(80, 2.0f));
    all_to_all(transport, input, output, 10);  // the transport still works
    EXPECT_EQ(output, input);
  });
  return said;
}

std::string refused(std::size_t columns, const Counts& sent, const Counts& received,
                    const std::string& codec = "int8") {
  return refused([&](Transport& transport, const Values& input, Values& output) {
    all_to_all(transport, input, output, columns, {.sent = sent, .received = received},
               {.codec = codec});
  });
}

TEST(AllToAllErrors, ReportRankAndReasonForInvalidSplits) {
  EXPECT_EQ(refused(10, {4, 3}, {4, 4}),
            "all_to_all on rank 1: sent adds up to 7 rows, but the input has 8");
  EXPECT_EQ(refused(10, {4, 4}, {4, 5}),
            "all_to_all on rank 1: received adds up to 9 rows, but the output has 8");
  EXPECT_EQ(refused(10, {9, ~std::size_t{0}}, {4, 4}),  // 8 modulo 2^64
            "all_to_all on rank 1: sent contains 9, but the input has 8 rows");
  EXPECT_EQ(refused(10, {8}, {}),
            "all_to_all on rank 1: sent has 1 numbers for 2 ranks: give one number per rank");
  EXPECT_EQ(refused(0, {}, {}), "all_to_all on rank 1: columns is 0: give at least 1");
  EXPECT_EQ(refused(33, {}, {}),
            "all_to_all on rank 1: the input has 80 values: give a multiple of columns, 33");
  EXPECT_EQ(refused(16, {}, {}),
            "all_to_all on rank 1: the 5 rows of the input are not a multiple of 2 ranks: give "
            "sent");
  EXPECT_EQ(refused(10, {4, 4}, {5, 3}),
            "all_to_all on rank 1: the rank sends 4 rows to itself but receives 3 from itself: "
            "give equal numbers");
}

TEST(AllToAllErrors, ReportUnsupportedCodecsOverlapAndDtypeMismatch) {
  EXPECT_EQ(refused(10, {}, {}, "int8+ef"),
            "codec int8+ef asks for error feedback, but all_to_all sends values once: leave out "
            "+ef");
  EXPECT_EQ(refused(10, {}, {}, "auto"),
            "codec auto is for allreduce and GradientReducer only: name a codec for all_to_all");
  for (const std::string codec : {"intsum", "lowrank"})
    EXPECT_NE(refused(10, {}, {}, codec)
                  .find("supports only allreduce: choose another codec for all_to_all"),
              std::string::npos);
  EXPECT_EQ(refused([](Transport& ranks, const Values&, Values& output) {
              all_to_all(ranks, output, output, 10);
            }),
            "all_to_all on rank 1: input and output overlap");
  EXPECT_EQ(refused([](Transport& ranks, const Values& input, Values&) {
              std::vector<Bf16> other(80);
              all_to_all(ranks, input, other, 10);
            }),
            "the output is bf16, but the input is f32");
}

// Rank 0 sends more or fewer rows than rank 1 expects; each of the two ranks detects the mismatch.
// The first pieces look equal for pieces of two rows of 256.
TEST(AllToAllErrors, SplitMismatchFailsOnBothRanks) {
  for (const std::size_t rows : {0u, 2u, 3u, 5u, 6u})
    for (const std::size_t columns : {10u, 256u}) {
      std::vector<std::string> said(3);
      run_ranks(3, {}, [&](Transport& transport) {
        const std::size_t first = transport.rank() == 0 ? rows : 4;
        const Counts sent{2, first, 2};
        const Counts taken = transport.rank() == 1 ? Counts{4, 4, 4} : Counts{2, 2, 2};
        const Values input((4 + first) * columns, 1.0f);
        Values output(sum(taken) * columns, 2.0f);
        try {
          all_to_all(transport, input, output, columns, {.sent = sent, .received = taken},
                     {.codec = "int8", .chunk_count = 1536});
        } catch (const Error& error) {
          said[index(transport.rank())] = error.what();
        }
        if (transport.rank() != 2) EXPECT_EQ(output, Values(output.size(), 2.0f));
      });
      for (const int rank : {0, 1}) {
        EXPECT_NE(said[index(rank)], "") << rows;
        EXPECT_EQ(said[index(rank)].find("within"), std::string::npos) << said[index(rank)];
      }
    }
}

}  // namespace
}  // namespace tersor::testing
