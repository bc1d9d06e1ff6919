// Isolated channels: operations waiting for a lost or late rank fail, all other operations
// continue, and faults of other fault domains have no effect.
#include <tersor/error.h>

#include <chrono>
#include <thread>

#include "tests/transport/calls.h"
#include "tests/transport/late_wire.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

/// Returns null if the transport refuses isolated channels.
std::unique_ptr<Transport> isolated_channel_of(Transport& transport) try {
  return transport.isolated_channel();
} catch (const InvalidArgumentError& error) {
  EXPECT_TRUE(says(error.what(), "use make_tcp_transport"));
  return nullptr;
}

class IsolatedChannels : public OnFabric {
 protected:
  /// Runs a body with the transport and an isolated channel.
  void on_isolated_channels(int ranks,
                            const std::function<void(Transport&, Transport&)>& body) const {
    run(ranks, [&](Transport& transport) {
      const auto isolated = isolated_channel_of(transport);
      if (isolated != nullptr) body(transport, *isolated);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Fabrics, IsolatedChannels, ::testing::ValuesIn(fabrics()), fabric_name);
INSTANTIATE_TEST_SUITE_P(Late, IsolatedChannels, ::testing::Values(late_fabric()), fabric_name);

/// Every rank sends to every rank.
void greet(Transport& transport, std::size_t bytes = 0) {
  exchange_all(transport, operation_of(transport, "meeting"), pattern(bytes, transport.rank(), 0));
}

/// Expects the loss of `rank`, with `how` in the error's text.
template <typename Call>
void expect_lost(int rank, const std::string& how, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "no error, where rank " << rank << " is lost";
  } catch (const PeerLostError& lost) {
    EXPECT_EQ(lost.rank(), rank) << lost.what();
    EXPECT_TRUE(says(lost.what(), how));
  }
}

void expect_sum(Transport& transport) {
  std::vector<float> values(10'000, 1.0f);
  transport.sum(operation_of(transport), cut(values, even_counts(values.size(), transport.ranks())))
      .wait_synchronize();
  EXPECT_EQ(values, std::vector<float>(10'000, static_cast<float>(transport.ranks())));
}

TEST_P(IsolatedChannels, ExchangeMessagesAndRejectOtherOperations) {
  on_isolated_channels(3, [](Transport& transport, Transport& isolated) {
    const auto channel = isolated.channel();
    for (Transport* each : {&isolated, channel.get()}) {
      for (const std::size_t bytes : {0u, 100u, 100'000u}) greet(*each, bytes);
      EXPECT_THROW(each->barrier({}), InvalidArgumentError);
      EXPECT_THROW(each->abort("no"), InvalidArgumentError);
      std::vector<float> values(3);
      EXPECT_THROW(each->sum({}, cut(values, {1, 1, 1})), InvalidArgumentError);
      EXPECT_THROW(each->maximum({}, cut(values, {1, 1, 1})), InvalidArgumentError);
    }
    expect_sum(*isolated.split(std::vector{0, 1, 2}));
    expect_sum(transport);
  });
}

TEST_P(IsolatedChannels, LateRankFailsOneOperationAndMayRejoin) {
  on_isolated_channels(3, [](Transport& transport, Transport& isolated) {
    const Operation late{.name = "late", .tag = 100, .timeout = 30ms};
    if (isolated.rank() == 0) {
      Handle open = isolated.receive({.name = "open", .tag = 101}, 2, 8);
      Handle given_up = isolated.receive({.name = "given up", .tag = 102, .timeout = 10ms}, 2, 8);
      expect_lost(2, "late on rank 0: no message from rank 2 within 30 ms",
                  [&] { isolated.receive(late, 2, 8).wait_synchronize(); });
      expect_lost(2, "given up", [&] { given_up.test(); });
      expect_lost(2, "given up", [&] { given_up.wait_synchronize(); });
      isolated.send({.name = "go", .tag = 99}, 2, {}).wait_synchronize();
      while (!open.test()) isolated.wait_activity(Clock::now() + 10s);
      isolated.receive({.name = "again", .tag = 100}, 2, 8).wait_synchronize();
    } else if (isolated.rank() == 2) {
      isolated.receive({.name = "go", .tag = 99}, 0, 0).wait_synchronize();
      for (const std::uint32_t tag : {100u, 101u})
        isolated.send({.name = "send", .tag = tag}, 0, pattern(8, 2, 0)).wait_synchronize();
    }
    greet(isolated);
    expect_sum(transport);
  });
}

// A receive_any waits as long as another rank remains.
TEST_P(IsolatedChannels, DepartureFailsOnlyAffectedOperations) {
  on_isolated_channels(3, [](Transport& transport, Transport& isolated) {
    auto own = isolated.channel();
    if (own->rank() == 0) {
      Handle any = own->receive_any({.name = "any", .tag = 7}, 8);
      Handle long_one = own->receive({.name = "long", .tag = 8}, 2, 100'000);
      expect_lost(2, "rank 2 left",
                  [&] { own->receive({.name = "gone"}, 2, 8).wait_synchronize(); });
      long_one.wait_synchronize();  // was sent before
      EXPECT_TRUE(equal_bytes(long_one.received(2), pattern(100'000, 2, 0)));
      const SendTo sends[] = {{2, {}}, {1, {}}};
      const ReceiveFrom receives[] = {{1, 0}};
      expect_lost(2, "exchange on rank 0: rank 2 left", [&] {
        own->exchange({.name = "exchange", .tag = 9}, sends, receives).wait_synchronize();
      });
      any.wait_synchronize();
      EXPECT_EQ(any.source(), 1);
      expect_lost(-1, "every other rank left",
                  [&] { own->receive_any({.name = "any", .tag = 7}, 8).wait_synchronize(); });
    } else if (own->rank() == 2) {
      own->send({.name = "send", .tag = 8}, 0, pattern(100'000, 2, 0)).wait_synchronize();
    } else {
      const SendTo to{0, {}};
      const ReceiveFrom from{0, 0};
      own->exchange({.name = "exchange", .tag = 9}, {&to, 1}, {&from, 1}).wait_synchronize();
      own->send({.name = "send", .tag = 7}, 0, {}).wait_synchronize();
    }
    own.reset();
    greet(transport);
  });
}

TEST_P(IsolatedChannels, OversizedMessageFailsOnlyItsOperation) {
  on_isolated_channels(2, [](Transport& transport, Transport& isolated) {
    const int peer = 1 - isolated.rank();
    for (const std::size_t bytes : {9u, 1'000u}) {
      Handle sent = isolated.send({.name = "send", .tag = 1}, peer, pattern(bytes, 0, 0));
      Handle fits = isolated.send({.name = "send", .tag = 1}, peer, pattern(8, 0, 1));
      try {
        isolated.receive({.name = "short", .tag = 1}, peer, 8).wait_synchronize();
        ADD_FAILURE() << "no error";
      } catch (const PeerLostError& lost) {
        ADD_FAILURE() << lost.what();
      } catch (const TransportError& error) {
        EXPECT_TRUE(says(error.what(), "but this rank expects at most 8"));
      }
      Handle taken = isolated.receive({.name = "short", .tag = 1}, peer, 8);
      taken.wait_synchronize();
      EXPECT_TRUE(equal_bytes(taken.received(peer), pattern(8, 0, 1)));
      sent.wait_synchronize();
      fits.wait_synchronize();
      greet(isolated);
    }
    expect_sum(transport);
  });
}

/// All ranks get the cause, in whichever call.
void expect_poisoned(Transport& transport, const std::string& cause) {
  try {
    for (;;) greet(transport);
  } catch (const TransportError& error) {
    EXPECT_TRUE(says(error.what(), cause));
  }
}

// Pending messages of the other fault domain, including long messages, use no credits of the
// remaining channels.
TEST_P(IsolatedChannels, FaultsStayInTheirDomain) {
  on_isolated_channels(3, [](Transport& transport, Transport& isolated) {
    const auto before = isolated.split(std::vector{0, 1, 2});
    const auto bytes = pattern(3'000, transport.rank(), 0);
    Handle unread =
        transport.send({.name = "unread", .tag = 50}, (transport.rank() + 1) % 3, bytes);
    greet(isolated);
    if (transport.rank() == 1) transport.abort("out of cheese");
    expect_poisoned(transport, "rank 1 gave up: out of cheese");
    EXPECT_THROW(transport.isolated_channel(), TransportError);
    for (int round = 0; round < 10; ++round) greet(isolated, 3'000);
    expect_sum(*before);
    {
      const auto other = isolated.split(std::vector{0, 1, 2});
      if (other->rank() == 2) other->abort("no tea");
      expect_poisoned(*other, "rank 2 gave up: no tea");
    }
    expect_sum(*before->channel());
    expect_sum(*isolated.split(std::vector{0, 1, 2}));
    greet(isolated, 100'000);
  });
}

}  // namespace
}  // namespace tersor::test
