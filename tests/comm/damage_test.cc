// Damaged messages. After a forwarded message, every error names the source of the damage, not the
// forwarding rank.
#include "comm/server/messages.h"
#include "comm/transport/forwarding.h"
#include "tests/comm/ranks.h"
#include "tests/comm/served.h"

#include <tersor/gossip.h>
#include <tersor/server.h>
#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tersor::testing {
namespace {

/// Flips a bit in the first message of the exchange with number `exchange`. Counts exchanges with
/// messages to send, from 0. Sleeps after these exchanges, because the receiver of a damaged
/// message must detect the damage before the forwarding rank does.
class Flipping final : public ForwardingTransport {
 public:
  Flipping(Transport& transport, int exchange)
      : Flipping(std::shared_ptr<Transport>(std::shared_ptr<void>(), &transport), exchange) {}
  Flipping(std::shared_ptr<Transport> transport, int exchange)
      : ForwardingTransport(std::move(transport)), left_(exchange) {}

  /// Counts separately.
  std::unique_ptr<Transport> isolated_channel() override {
    return std::make_unique<Flipping>(inner().isolated_channel(), left_);
  }

  Handle exchange(const Operation& operation, std::span<const SendTo> sends,
                  std::span<const ReceiveFrom> receives) override {
    std::vector<SendTo> changed(sends.begin(), sends.end());
    if (!changed.empty() && left_-- == 0) {
      SendTo& first = changed.front();
      flipped_.assign(first.bytes.begin(), first.bytes.end());
      flipped_[flipped_.size() / 2] ^= std::byte{4};
      first.bytes = flipped_;
    }
    Handle handle = inner().exchange(operation, changed, receives);
    if (!sends.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return handle;
  }

 private:
  int left_;
  std::vector<std::byte> flipped_;
};

/// The errors of all ranks if `damager` sends a damaged message.
std::vector<std::string> errors_with_damage(int ranks, int damager, int exchange,
                                            const std::function<void(Transport&)>& call) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_ranks(ranks, {}, [&](Transport& transport) {
    Flipping flipping(transport, transport.rank() == damager ? exchange : -1);
    try {
      call(flipping);
      transport.barrier({.name = "meeting", .tag = transport.reserve_tags(1)}).wait_synchronize();
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(transport.rank())] = error.what();
    }
  });
  return errors;
}

void expect_named(const std::vector<std::string>& errors, int damager) {
  for (const std::string& error : errors)
    EXPECT_NE(error.find("the frame of rank " + std::to_string(damager)), std::string::npos)
        << error;
}

// Along the tree, and along the chain.
TEST(Damage, BroadcastErrorsNameTheDamagingRank) {
  for (const std::size_t count : {std::size_t{1000}, std::size_t{100'000}})
    expect_named(errors_with_damage(5, 0, 0,
                                    [count](Transport& transport) {
                                      Values values(count, 1.0f);
                                      broadcast(transport, values);
                                    }),
                 0);
}

// The owner's sum in the second dimension, forwarded by its neighbor in the first dimension.
TEST(Damage, GridErrorsNameTheDamagingRank) {
  const int dims[] = {2, 2};
  expect_named(errors_with_damage(
                   4, 3, 2,
                   [&dims](Transport& transport) {
                     Values values(10'000, 1.0f);
                     allreduce(transport, values,
                               {.codec = "int8", .algorithm = Algorithm::kTwoShot, .dims = dims});
                   }),
               3);
}

// The neighbour of the damaged message has applied a part of the step's differences. The ranks then
// start an epoch.
TEST(Damage, GossipRecoversFromDamagedMessage) {
  constexpr int kRanks = 4, kDamager = 1, kMessage = 9;
  std::atomic<int> errors = 0;
  std::vector<Values> all = gradients(kRanks, 6'000);
  const std::vector<double> sum = exact_sum(all);
  all = on_ranks(all, [&](Transport& transport, Values& values) {
    Flipping flipping(transport, transport.rank() == kDamager ? kMessage : -1);
    Gossip gossip(flipping, Topology::ring(kRanks), {.codec = "int8"});
    gossip.add("w", values);
    for (int step = 0; step < 40; ++step) try {
        gossip.mix();
      } catch (const WireError&) {
        ++errors;
      }
  });
  EXPECT_EQ(errors, 1);
  const std::vector<double> same(all[0].begin(), all[0].end());
  for (const Values& one : all) EXPECT_LT(squared_error(one, same), 1e-6);
  std::vector<double> mean;
  for (const double value : sum) mean.push_back(value / kRanks);
  EXPECT_LT(squared_error(all[0], mean), 0.1);
}

// Rank 0 answers a push that never came, or a pull of an earlier clock.
TEST(Damage, ClientRejectsInvalidServerReplies) {
  const std::vector<std::size_t> counts = {4};
  const ServerOptions options{.workers = {1}};
  for (const bool to_push : {true, false})
    run_ranks(2, {}, [&](Transport& transport) {
      const auto isolated = transport.isolated_channel();
      if (transport.rank() == 0) {
        ServerMailbox worker(*isolated, kServerMailbox, 1000);
        while (!worker.receive(1).has_value())
          isolated->wait_activity(Clock::now() + std::chrono::milliseconds(10));
        worker.send(1, {.type = ServerMessage::kJoined, .clock = 3});
        worker.send(
            1, {.type = to_push ? ServerMessage::kApplied : ServerMessage::kWeights, .clock = 2});
        while (worker.unsent(1) != 0)
          isolated->wait_activity(Clock::now() + std::chrono::milliseconds(10));
        transport.barrier({.tag = transport.reserve_tags(1)}).wait_synchronize();
        return;
      }
      ParameterClient client({{isolated.get(), 0}}, counts, options,
                             std::chrono::milliseconds(500));
      ServedWeights weights = {Values(4)};
      const auto pull = [&] { client.pull(spans<ValueSpan>(weights)); };
      if (to_push)
        expect_error<WireError>(pull, "a push that this worker did not send");
      else
        expect_error<TransportError>(pull, "did not answer");
      transport.barrier({.tag = transport.reserve_tags(1)}).wait_synchronize();
    });
}

}  // namespace
}  // namespace tersor::testing
