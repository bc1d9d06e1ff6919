// Transport conformance of exchange: messages to and from any peers, of any length including 0.
// Invalid lists are refused by name.
#include <map>

#include "tests/transport/rank.h"

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Fabrics, TransportExchange, ::testing::ValuesIn(fabrics()), fabric_name);

/// Messages of `bytes` bytes to and from each peer, with the contents of `pattern`.
class Messages {
 public:
  explicit Messages(const Rank& rank) : rank_(rank) {}

  void send(int peer, std::size_t bytes) {
    memory_.emplace_back(rank_, pattern(bytes, rank_.rank(), peer));
    sends_.push_back({peer, memory_.back().span()});
  }
  void receive(int peer, std::size_t bytes, std::size_t spare = 0) {
    receives_.push_back({peer, bytes + spare});
    expected_[peer] = bytes;
  }

  void exchange() {
    Handle handle = rank_.transport.exchange(rank_.operation(), sends_, receives_);
    handle.wait_synchronize();
    for (const int peer : rank_.peers())
      if (expected_.contains(peer))
        rank_.expect(handle, peer, expected_[peer], rank_.rank());
      else
        EXPECT_TRUE(handle.received(peer).empty()) << peer;
  }

 private:
  const Rank& rank_;
  std::deque<RankBytes> memory_;
  std::vector<SendTo> sends_;
  std::vector<ReceiveFrom> receives_;
  std::map<int, std::size_t> expected_;
};

TEST_P(TransportExchange, ShiftsAlongARing) {
  on_all_ranks([](const Rank& rank) {
    for (const std::size_t bytes : rank.sizes())
      for (int distance = 1; distance < rank.ranks(); ++distance) {
        Messages messages(rank);
        messages.send(rank.at(distance), bytes);
        messages.receive(rank.at(-distance), bytes, rank.spare());
        messages.exchange();
      }
  });
}

TEST_P(TransportExchange, SendsToStarCenterAndBack) {
  on_all_ranks([](const Rank& rank) {
    for (const bool inwards : {true, false}) {
      Messages messages(rank);
      for (const int peer : rank.peers()) {
        if (rank.rank() != 0 && peer != 0) continue;
        if (inwards == (peer == 0))
          messages.send(peer, 1000);
        else
          messages.receive(peer, 1000);
      }
      messages.exchange();
    }
  });
}

// Rank r sends to all higher ranks, and more to higher ranks. The lowest rank receives nothing.
TEST_P(TransportExchange, ListsMayBeUneven) {
  on_all_ranks([](const Rank& rank) {
    Messages messages(rank);
    const auto bytes = [](int from, int to) { return static_cast<std::size_t>(to - from) * 4001; };
    for (int peer = rank.ranks() - 1; peer > rank.rank(); --peer)
      messages.send(peer, bytes(rank.rank(), peer));
    for (int peer = 0; peer < rank.rank(); ++peer) messages.receive(peer, bytes(peer, rank.rank()));
    messages.exchange();
  });
}

// An exchange without messages completes alone. Ranks without a call block no other rank, except in
// queues.
TEST_P(TransportExchange, ListsMayBeEmpty) {
  on_all_ranks([](const Rank& rank) {
    EXPECT_TRUE(rank.transport.exchange(rank.operation(), {}, {}).test());
    const std::uint32_t tag = rank.transport.reserve_tags(1);
    if (rank.ranks() == 1 || (rank.rank() > 1 && !rank.queues())) return;
    const bool sends = rank.rank() == 0, receives = rank.rank() == 1;
    const RankBytes send(rank, pattern(1, 0, 1));
    const SendTo to{1, send.span()};
    const ReceiveFrom from{0, 1};
    Handle handle = rank.transport.exchange(rank.operation(tag), std::span(&to, sends ? 1 : 0),
                                            std::span(&from, receives ? 1 : 0));
    handle.wait_synchronize();
    if (receives) rank.expect(handle, 0, 1, 1);
  });
}

// A server answers requests from any rank with a combined send and receive.
TEST_P(TransportExchange, ReceivesFromAnyRank) {
  on_all_ranks([](const Rank& rank) {
    if (!rank.transport.traits().receive_any || rank.ranks() == 1) return;
    Transport& transport = rank.transport;
    const Operation asking = rank.operation(), answering = rank.operation();
    const RankBytes own(rank, pattern(100, rank.rank(), 0));
    if (rank.rank() != 0) {
      const SendTo question{0, own.span()};
      const ReceiveFrom answer{0, 100};
      Handle asked = transport.exchange(asking, {&question, 1}, {});
      Handle answered = transport.exchange(answering, {}, {&answer, 1});
      asked.wait_synchronize();
      answered.wait_synchronize();
      EXPECT_TRUE(rank.read(answered.received(0)) == pattern(100, rank.rank(), 0));
      return;
    }
    for (int left = rank.ranks() - 1; left > 0; --left) {
      const ReceiveFrom any{kAnyRank, 100};
      Handle question = transport.exchange(asking, {}, {&any, 1});
      question.wait_synchronize();
      const SendTo answer{question.source(), question.received(question.source())};
      transport.exchange(answering, {&answer, 1}, {}).wait_synchronize();
    }
  });
}

// Messages of several concurrent exchanges match by tag, or by their order in a queue.
TEST_P(TransportExchange, SeveralExchangesMayOverlap) {
  on_all_ranks([](const Rank& rank) {
    if (rank.ranks() == 1) return;
    constexpr int kExchanges = 9;
    const bool turned = rank.rank() % 2 == 1 && !rank.transport.traits().ordered;
    const std::uint32_t base = rank.transport.reserve_tags(kExchanges);
    std::deque<RankBytes> memory;
    std::vector<Handle> handles;
    for (int i = 0; i < kExchanges; ++i) memory.emplace_back(rank, pattern(3000, rank.rank(), i));
    for (int i = 0; i < kExchanges; ++i) {
      const int which = turned ? kExchanges - 1 - i : i;
      const SendTo to{rank.at(1), memory[static_cast<std::size_t>(which)].span()};
      const ReceiveFrom from{rank.at(-1), 3000};
      handles.push_back(rank.transport.exchange(
          rank.operation(base + static_cast<std::uint32_t>(which)), {&to, 1}, {&from, 1}));
    }
    for (int i = 0; i < kExchanges; ++i) {
      handles[static_cast<std::size_t>(i)].wait_synchronize();
      rank.expect(handles[static_cast<std::size_t>(i)], rank.at(-1), 3000,
                  turned ? kExchanges - 1 - i : i);
    }
  });
}

TEST_P(TransportExchange, RejectsInvalidListsWithReason) {
  run(3, [](const Rank& rank) {
    using Sends = std::vector<SendTo>;
    using Receives = std::vector<ReceiveFrom>;
    const int own = rank.rank(), next = rank.at(1), last = rank.at(-1);
    const std::string no_peer = " is not a peer of rank " + std::to_string(own) + " of 3";
    Operation operation = rank.operation();
    operation.name = "step";
    const auto refusal = [&](const Sends& sends, const Receives& receives) {
      return error_of<InvalidArgumentError>(
          [&] { rank.transport.exchange(operation, sends, receives); });
    };
    const std::string next_name = "rank " + std::to_string(next);
    EXPECT_TRUE(says(refusal({{next}, {last}, {next}}, {}), "step: two messages to " + next_name));
    EXPECT_TRUE(says(refusal({}, {{last, 1}, {next, 1}, {next, 1}}),
                     "step: two messages from " + next_name));
    EXPECT_TRUE(says(refusal({{own}}, {}), "rank " + std::to_string(own) + no_peer));
    EXPECT_TRUE(says(refusal({}, {{own, 1}}), "rank " + std::to_string(own) + no_peer));
    EXPECT_TRUE(says(refusal({{3}}, {}), "rank 3" + no_peer));
    EXPECT_TRUE(says(refusal({}, {{3, 1}}), "rank 3" + no_peer));
    EXPECT_TRUE(says(refusal({{kAnyRank}}, {}), "rank -1" + no_peer));
    EXPECT_TRUE(says(refusal({}, {{-2, 1}}), "rank -2" + no_peer));
    EXPECT_TRUE(says(refusal({}, {{next, 1}, {kAnyRank, 1}}), "rank -1" + no_peer));
    if (!rank.transport.traits().receive_any)
      EXPECT_TRUE(says(refusal({}, {{kAnyRank, 1}}), "no receive_any"));
    rank.transport.barrier(rank.operation()).wait_synchronize();  // the transport is not aborted
  });
  run(1, [](const Rank& rank) {
    const ReceiveFrom any{kAnyRank, 1};
    EXPECT_THROW(rank.transport.exchange(rank.operation(), {}, {&any, 1}), InvalidArgumentError);
  });
}

}  // namespace
}  // namespace tersor::test
