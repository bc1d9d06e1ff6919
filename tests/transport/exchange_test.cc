// Transport conformance of exchange: messages to and from any peers, of any length including 0.
// Invalid lists are refused by name.
#include <algorithm>
#include <chrono>

#include "tests/transport/late_wire.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

class TransportExchange : public OnFabric {};

INSTANTIATE_TEST_SUITE_P(Fabrics, TransportExchange, ::testing::ValuesIn(fabrics()), fabric_name);
INSTANTIATE_TEST_SUITE_P(Late, TransportExchange, ::testing::Values(late_fabric()), fabric_name);

/// Exchanges in which the receiver reads a message from the sender's memory only when the receive
/// is posted.
class UnreadExchange : public OnFabric {};

INSTANTIATE_TEST_SUITE_P(Late, UnreadExchange, ::testing::Values(late_fabric()), fabric_name);

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << '"' << text << "\" does not say " << part;
}

/// Messages of `bytes` bytes to and from each peer, with the contents of `pattern`.
class Messages {
 public:
  explicit Messages(Transport& transport) : transport_(transport) {}

  void send(int peer, std::size_t bytes) {
    memory_.push_back(pattern(bytes, transport_.rank(), peer));
    sends_.push_back({peer, memory_.back()});
  }
  void receive(int peer, std::size_t bytes, std::size_t spare = 0) {
    receives_.push_back({peer, bytes + spare});
    expected_.push_back(bytes);
  }

  void exchange() {
    Handle handle = transport_.exchange(operation_of(transport_), sends_, receives_);
    handle.wait_synchronize();
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      const int peer = receives_[i].peer;
      EXPECT_TRUE(
          equal_bytes(handle.received(peer), pattern(expected_[i], peer, transport_.rank())))
          << expected_[i] << " bytes from " << peer << " to " << transport_.rank();
    }
    for (const int peer : peers_of(transport_))
      if (!hears(peer)) EXPECT_TRUE(handle.received(peer).empty()) << peer;
  }

 private:
  bool hears(int peer) const {
    return std::any_of(receives_.begin(), receives_.end(),
                       [&](const ReceiveFrom& message) { return message.peer == peer; });
  }

  Transport& transport_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<SendTo> sends_;
  std::vector<ReceiveFrom> receives_;
  std::vector<std::size_t> expected_;
};

TEST_P(TransportExchange, ShiftsAlongARing) {
  on_all_ranks([](Transport& transport) {
    const int ranks = transport.ranks();
    for (const std::size_t bytes : {0u, 1u, 257u, 1u << 20})
      for (int distance = 1; distance < ranks; ++distance) {
        Messages messages(transport);
        messages.send((transport.rank() + distance) % ranks, bytes);
        messages.receive((transport.rank() + ranks - distance) % ranks, bytes, 7);
        messages.exchange();
      }
  });
}

TEST_P(TransportExchange, GoesToAStarsMiddleAndBack) {
  on_all_ranks([](Transport& transport) {
    for (const bool inwards : {true, false}) {
      Messages messages(transport);
      for (const int peer : peers_of(transport)) {
        if (transport.rank() != 0 && peer != 0) continue;
        if (inwards == (peer == 0))
          messages.send(peer, 1000);
        else
          messages.receive(peer, 1000);
      }
      messages.exchange();
    }
  });
}

// Rank r sends to all higher ranks, and more to higher ranks.
TEST_P(TransportExchange, ListsMayBeUneven) {
  on_all_ranks([](Transport& transport) {
    Messages messages(transport);
    const auto bytes = [](int from, int to) { return static_cast<std::size_t>(to - from) * 4001; };
    for (int peer = transport.ranks() - 1; peer > transport.rank(); --peer)
      messages.send(peer, bytes(transport.rank(), peer));
    for (int peer = 0; peer < transport.rank(); ++peer)
      messages.receive(peer, bytes(peer, transport.rank()));
    messages.exchange();
  });
}

// An exchange without messages completes alone. Ranks without a call block no other rank.
TEST_P(TransportExchange, ListsMayBeEmpty) {
  on_all_ranks([](Transport& transport) {
    EXPECT_TRUE(transport.exchange(operation_of(transport), {}, {}).test());
    const std::uint32_t tag = transport.reserve_tags(1);
    if (transport.rank() > 1 || transport.ranks() == 1) return;
    const std::byte own{42};
    const SendTo to{1, {&own, 1}};
    const ReceiveFrom from{0, 1};
    const bool sends = transport.rank() == 0;
    Handle handle = transport.exchange({.name = "pair", .tag = tag}, std::span(&to, sends ? 1 : 0),
                                       std::span(&from, sends ? 0 : 1));
    handle.wait_synchronize();
    if (!sends) EXPECT_EQ(handle.received(0).front(), own);
  });
}

// A server answers requests from any rank with a combined send and receive.
TEST_P(TransportExchange, TakesAMessageFromAnyRank) {
  on_all_ranks([](Transport& transport) {
    if (!transport.traits().receive_any || transport.ranks() == 1) return;
    const Operation asking = operation_of(transport, "asking");
    const Operation answering = operation_of(transport, "answering");
    const auto own = pattern(100, transport.rank(), 0);
    if (transport.rank() != 0) {
      const SendTo question{0, own};
      const ReceiveFrom answer{0, 100};
      Handle asked = transport.exchange(asking, {&question, 1}, {});
      Handle answered = transport.exchange(answering, {}, {&answer, 1});
      asked.wait_synchronize();
      answered.wait_synchronize();
      EXPECT_TRUE(equal_bytes(answered.received(0), own));
      return;
    }
    for (int left = transport.ranks() - 1; left > 0; --left) {
      const ReceiveFrom any{kAnyRank, 100};
      Handle question = transport.exchange(asking, {}, {&any, 1});
      question.wait_synchronize();
      const SendTo answer{question.source(), question.received(question.source())};
      transport.exchange(answering, {&answer, 1}, {}).wait_synchronize();
    }
  });
}

// Messages of several concurrent exchanges match by tag.
TEST_P(TransportExchange, ManyMayBeUnderWay) {
  on_all_ranks([](Transport& transport) {
    if (transport.ranks() == 1) return;
    constexpr int kExchanges = 9;
    const int next = (transport.rank() + 1) % transport.ranks();
    const int before = (transport.rank() + transport.ranks() - 1) % transport.ranks();
    const std::uint32_t base = transport.reserve_tags(kExchanges);
    std::vector<std::vector<std::byte>> memory;
    std::vector<Handle> handles;
    for (int i = 0; i < kExchanges; ++i) memory.push_back(pattern(3000, transport.rank(), i));
    for (int i = 0; i < kExchanges; ++i) {
      const int which = transport.rank() % 2 == 0 ? i : kExchanges - 1 - i;
      const SendTo to{next, memory[static_cast<std::size_t>(which)]};
      const ReceiveFrom from{before, 3000};
      handles.push_back(transport.exchange(
          {.name = "test", .tag = base + static_cast<std::uint32_t>(which)}, {&to, 1}, {&from, 1}));
    }
    for (int i = 0; i < kExchanges; ++i) {
      Handle& handle = handles[static_cast<std::size_t>(i)];
      handle.wait_synchronize();
      const int which = transport.rank() % 2 == 0 ? i : kExchanges - 1 - i;
      EXPECT_TRUE(equal_bytes(handle.received(before), pattern(3000, before, which)));
    }
  });
}

TEST_P(TransportExchange, RefusesByNameWhatNoExchangeIs) {
  run(3, [](Transport& transport) {
    using Sends = std::vector<SendTo>;
    using Receives = std::vector<ReceiveFrom>;
    const int own = transport.rank(), next = (own + 1) % 3, last = (own + 2) % 3;
    const std::string no_peer = " is not a peer of rank " + std::to_string(own) + " of 3";
    const auto refusal = [&](const Sends& sends, const Receives& receives) -> std::string {
      try {
        transport.exchange({.name = "step"}, sends, receives);
      } catch (const InvalidArgumentError& error) {
        return error.what();
      }
      return "nothing was thrown";
    };
    const std::string next_name = "rank " + std::to_string(next);
    expect_contains(refusal({{next}, {last}, {next}}, {}), "step: two messages to " + next_name);
    expect_contains(refusal({}, {{last, 1}, {next, 1}, {next, 1}}),
                    "step: two messages from " + next_name);
    expect_contains(refusal({{own}}, {}), "rank " + std::to_string(own) + no_peer);
    expect_contains(refusal({}, {{own, 1}}), "rank " + std::to_string(own) + no_peer);
    expect_contains(refusal({{3}}, {}), "rank 3" + no_peer);
    expect_contains(refusal({}, {{3, 1}}), "rank 3" + no_peer);
    expect_contains(refusal({{kAnyRank}}, {}), "rank -1" + no_peer);
    expect_contains(refusal({}, {{-2, 1}}), "rank -2" + no_peer);
    expect_contains(refusal({}, {{next, 1}, {kAnyRank, 1}}), "rank -1" + no_peer);
    transport.barrier(operation_of(transport)).wait_synchronize();  // the transport is not poisoned
  });
  run(1, [](Transport& transport) {
    const ReceiveFrom any{kAnyRank, 1};
    EXPECT_THROW(transport.exchange({.name = "step"}, {}, {&any, 1}), InvalidArgumentError);
  });
}

// All expected messages have arrived, but rank 1 does not receive the sent message.
TEST_P(UnreadExchange, NamesWhoDoesNotTake) {
  const auto errors = errors_of(GetParam(), 3, [](Transport& transport) {
    const auto own = std::make_shared<std::vector<std::byte>>(pattern(1000, transport.rank(), 0));
    const SendTo to_middle{0, *own}, to_idle{1, *own};
    const ReceiveFrom from{2, 1000};
    const Operation operation{
        .name = "step", .timeout = std::chrono::milliseconds(200), .keep_alive = own};
    if (transport.rank() == 0)
      transport.exchange(operation, {&to_idle, 1}, {&from, 1}).wait_synchronize();
    if (transport.rank() == 2)
      transport.exchange(operation, {&to_middle, 1}, {}).wait_synchronize();
  });
  expect_contains(errors[0], "step on rank 0: no message from rank 1 within 200 ms");
}

}  // namespace
}  // namespace tersor::test
