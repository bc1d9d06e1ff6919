// send and receive: encoded values between two ranks, without participation of other ranks.
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

constexpr std::size_t kSentCounts[] = {0, 1, 513, 70'003};

// Results equal a broadcast, for codecs of fixed and of variable size.
TEST(Sending, MatchesBroadcastForEachCodec) {
  for (const std::string codec : {"none", "bf16", "int8:rounding=stochastic", "hadamard:bits=4",
                                  "topk:density=0.2", "blocktopk:density=0.2"})
    for (const std::size_t count : kSentCounts)
      run_ranks(3, {}, [&](Transport& transport) {
        const Values own = gaussian(count, 2);
        Values all = own, found(count);
        broadcast(transport, all, 2, {.codec = codec});
        if (transport.rank() == 2) send(transport, own, 0, {.codec = codec}).wait();
        if (transport.rank() != 0) return;
        receive(transport, found, 2, {.codec = codec}).wait();
        EXPECT_EQ(found, all) << codec << " " << count;
      });
}

TEST(Sending, ChunkedTransferMatchesUnchunked) {
  for (const std::string codec :
       {"none", "int8:rounding=stochastic", "hadamard:bits=4", "topk:density=0.2"})
    run_ranks(2, {}, [&](Transport& transport) {
      const Values own = gaussian(70'003, 2);
      Values found(own.size()), at_once(own.size());
      const CollectiveOptions pieces{.codec = codec, .chunk_count = 512};
      const std::uint64_t before = transport.counters().sent_messages;
      if (transport.rank() == 0) {
        send(transport, own, 1, pieces).wait();
        const bool is_cut = make_codec(codec)->traits().divisible;
        EXPECT_EQ(transport.counters().sent_messages - before, is_cut ? 137u : 1u) << codec;
        return send(transport, own, 1, {.codec = codec}).wait();
      }
      receive(transport, found, 0, pieces).wait();
      receive(transport, at_once, 0, {.codec = codec}).wait();
      EXPECT_EQ(found, at_once) << codec;
    });
}

// Several messages in both directions at once, with collectives of all ranks in between, waited for
// in any order.
TEST(Sending, MessagesArriveInSendOrder) {
  run_ranks(4, {}, [](Transport& transport) {
    const int rank = transport.rank(), next = (rank + 1) % 4, before = (rank + 3) % 4;
    constexpr std::size_t kMessages = 5;
    const CollectiveOptions in_pieces{.codec = "none", .chunk_count = 700};
    std::vector<Sending> sendings;
    std::vector<Values> came;
    for (std::size_t i = 0; i < kMessages; ++i) came.emplace_back(1000 * i);
    for (std::size_t i = 0; i < kMessages; ++i) {
      Values values(1000 * i, static_cast<float>(rank * 100) + static_cast<float>(i));
      sendings.push_back(send(transport, values, next, in_pieces));
      std::fill(values.begin(), values.end(), -1.0f);  // allowed directly after `send`
      Values sum(100, 1.0f);
      allreduce(transport, sum, {.codec = "none"});
      EXPECT_EQ(sum, Values(100, 4.0f));
      sendings.push_back(receive(transport, came[i], before, in_pieces));
    }
    for (std::size_t i = sendings.size(); i-- > 0;) sendings[i].wait();
    for (std::size_t i = 0; i < kMessages; ++i)
      EXPECT_EQ(came[i],
                Values(1000 * i, static_cast<float>(before * 100) + static_cast<float>(i)));
  });
}

TEST(Sending, TestReportsCompletion) {
  run_ranks(2, parse_link("1Gbit,2ms"), [](Transport& transport) {
    Values values(10'000, 3.0f);
    if (transport.rank() == 0) return send(transport, values, 1).wait();
    Values found(10'000);
    Sending receiving = receive(transport, found, 0);
    while (!receiving.test()) transport.wait_activity(Clock::now() + std::chrono::seconds(1));
    EXPECT_EQ(found, values);
    EXPECT_TRUE(receiving.test());
  });
}

TEST(Sending, DestructorWaitsForCompletion) {
  run_ranks(2, parse_link("1Gbit,2ms"), [](Transport& transport) {
    Values values(10'000, 3.0f), found(10'000);
    if (transport.rank() == 0) {
      send(transport, values, 1);
    } else {
      receive(transport, found, 0);
      EXPECT_EQ(found, values);
    }
  });
}

TEST(SendingErrors, ReportReasonForInvalidArguments) {
  EXPECT_EQ(refused([](Transport& ranks, Values& values) { send(ranks, values, ranks.rank()); }),
            "send on rank 1: peer is 1: give another rank from 0 to 1");
  EXPECT_EQ(refused([](Transport& ranks, Values& values) { receive(ranks, values, 2); }),
            "receive on rank 1: peer is 2: give another rank from 0 to 1");
  EXPECT_EQ(refused([](Transport& ranks, Values& values) {
              send(ranks, values, 1 - ranks.rank(), {.codec = "int8+ef"});
            }),
            "codec int8+ef asks for error feedback, but send sends values once: leave out +ef");
  EXPECT_NE(refused([](Transport& ranks, Values& values) {
              receive(ranks, values, 1 - ranks.rank(), {.codec = "intsum"});
            }).find("supports only allreduce: choose another codec for send"),
            std::string::npos);
}

// Both ranks receive an error in this call or the next.
TEST(SendingErrors, MismatchedEndsFailOnBothRanks) {
  for (const auto& [codec, count] :
       {std::pair("int4", std::size_t{1000}), {"int8", std::size_t{1001}}}) {
    std::vector<std::string> said(2);
    run_ranks(2, {}, [&, codec = codec, count = count](Transport& transport) {
      Values values(1000, 1.0f), found(count, 2.0f);
      try {
        if (transport.rank() == 0)
          send(transport, values, 1, {.codec = "int8", .chunk_count = 256}).wait();
        else
          receive(transport, found, 0, {.codec = codec, .chunk_count = 256}).wait();
        allreduce(transport, values);
      } catch (const TransportError& error) {
        said[static_cast<std::size_t>(transport.rank())] = error.what();
      }
      EXPECT_EQ(found, Values(count, 2.0f));
    });
    for (const std::string& text : said)
      EXPECT_NE(text.find("other arguments"), std::string::npos) << text;
  }
}

TEST(SendingErrors, DisconnectedPeerFailsReceive) {
  EXPECT_THROW(run_ranks(2, {},
                         [](Transport& transport) {
                           Values values(100);
                           if (transport.rank() == 0) receive(transport, values, 1).wait();
                         }),
               TransportError);
}

// An isolated channel refuses `abort`.
TEST(SendingErrors, DestructorIgnoresLostPeerOnIsolatedChannel) {
  run_ranks(2, {}, [](Transport& transport) {
    const std::unique_ptr<Transport> isolated = transport.isolated_channel();
    Values values(100);
    if (transport.rank() == 0)
      const Sending lost = receive(*isolated, values, 1, {.timeout = std::chrono::seconds(1)});
  });
}

}  // namespace
}  // namespace tersor::testing
