// Ranks lost without notice, all simulated in one thread. Each operation of an isolated channel
// ends with a message or with the loss, for every set of delivered messages and pending operations.
// Other operations continue.
#include <tersor/error.h>

#include <chrono>
#include <optional>
#include <thread>

#include "tests/transport/calls.h"
#include "tests/transport/late_wire.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLengths[] = {10, 1'000, 6'000, 20};  // the third uses rendezvous
constexpr std::size_t kBytesOfTwo = 2'000;
constexpr std::uint32_t kAny = 5, kFromTwo = 9;  // tags

/// An operation and its result.
struct Watched {
  Handle handle = {};
  bool done = false;
  std::optional<int> lost = {};
  std::string error = {};

  bool ended() {
    if (done || lost.has_value()) return true;
    try {
      done = handle.test();
    } catch (const PeerLostError& loss) {
      lost = loss.rank();
      error = loss.what();
    }
    return done || lost.has_value();
  }
};

/// The order of a run: progress before rank 0 is killed, and messages delivered afterwards.
struct Order {
  int polls;             ///< of all ranks, between sends and loss
  std::size_t messages;  ///< still delivered
  bool waits;  ///< True if rank 1 waits before the messages arrive, false if after the loss
};

/// Three ranks in one thread; rank 0 is killed.
class LateRanks {
 public:
  LateRanks() {
    for (const auto& transport : transports_)
      isolated_channels_.push_back(transport->isolated_channel());
  }
  ~LateRanks() {
    isolated_channels_.clear();
    transports_[0]->abort("it was killed");  // avoids waiting for goodbyes
    transports_[0].reset();
    const std::jthread other([&] { transports_[2].reset(); });
    transports_[1].reset();
  }
  LateRanks(const LateRanks&) = delete;
  LateRanks& operator=(const LateRanks&) = delete;

  Transport& on(int rank) { return *isolated_channels_[static_cast<std::size_t>(rank)]; }

  void poll(int first = 0) {
    for (int rank = first; rank < 3; ++rank) on(rank).progress();
  }

  /// Polls ranks 1 and 2 until all operations have ended. Returns false if some never end.
  bool finish(const std::vector<Watched*>& all) {
    for (int iteration = 0; iteration < 100'000; ++iteration) {
      if (std::ranges::all_of(all, [](Watched* each) { return each->ended(); })) return true;
      poll(1);
    }
    return false;
  }

  void kill(std::size_t messages) { network_->kill(0, messages); }

 private:
  std::shared_ptr<LateNetwork> network_ = std::make_shared<LateNetwork>();

 protected:
  std::vector<std::unique_ptr<Transport>> transports_ = late_transports(3, network_);

 private:
  std::vector<std::unique_ptr<Transport>> isolated_channels_;
};

/// The run of one order.
class OneLoss : public LateRanks {
 public:
  explicit OneLoss(const Order& order) : order_(order) {}

  void run() {
    send();
    if (order_.waits) receive();
    for (int i = 0; i < order_.polls; ++i) poll();
    kill(order_.messages);
    if (!order_.waits) {
      for (int i = 0; i < 50; ++i) poll(1);
      receive();
    }
    const auto bytes = pattern(kBytesOfTwo, 2, 1);
    from_two_.push_back({on(2).send({.name = "send", .tag = kFromTwo}, 1, {})});
    from_two_.push_back({on(2).send({.name = "send", .tag = kAny}, 1, bytes)});
    std::vector<Watched*> all = {&any_, &two_};
    for (auto* list : {&messages_, &answers_, &from_two_})
      for (Watched& each : *list) all.push_back(&each);
    EXPECT_TRUE(finish(all));
    expect_prefix();
    expect_others();
  }

 private:
  void send() {
    for (std::uint32_t tag = 0; tag < std::size(kLengths); ++tag)
      sent_.push_back({on(0).send({.name = "send", .tag = tag}, 1, pattern(kLengths[tag], 0, 1))});
    sent_.push_back({on(0).send({.name = "send", .tag = kAny}, 1, pattern(6'000, 0, 1))});
  }

  void receive() {
    any_.handle = on(1).receive_any({.name = "any", .tag = kAny}, 6'000);
    two_.handle = on(1).receive({.name = "two", .tag = kFromTwo}, 2, 0);
    for (std::uint32_t tag = 0; tag < std::size(kLengths); ++tag)
      messages_.push_back({on(1).receive({.name = "message", .tag = tag}, 0, kLengths[tag])});
    for (const std::size_t bytes : {1'000u, 6'000u})  // one eager, one rendezvous
      answers_.push_back({on(1).send({.name = "answer"}, 0, pattern(bytes, 1, 0))});
  }

  // Received messages are correct. After the first missing eager message, no later eager message
  // arrives.
  void expect_prefix() {
    bool missing = false;
    for (std::size_t tag = 0; tag < messages_.size(); ++tag) {
      Watched& message = messages_[tag];
      if (message.done) {
        EXPECT_TRUE(equal_bytes(message.handle.received(0), pattern(kLengths[tag], 0, 1))) << tag;
        EXPECT_FALSE(missing && tag != 2) << tag;
      } else {
        EXPECT_EQ(message.lost, 0);
        EXPECT_TRUE(says(message.error, "message on rank 1: rank 0 is lost: the queues say so"));
        missing = missing || tag != 2;
      }
    }
    for (const Watched& answer : answers_) EXPECT_TRUE(answer.done || answer.lost == 0);
  }

  void expect_others() {
    EXPECT_TRUE(two_.done);
    ASSERT_TRUE(any_.done);
    const int source = any_.handle.source();
    EXPECT_TRUE(equal_bytes(any_.handle.received(source),
                            pattern(source == 0 ? 6'000 : kBytesOfTwo, source, 1)));
  }

  const Order order_;
  std::vector<Watched> sent_, messages_, answers_, from_two_;
  Watched any_, two_;
};

TEST(LossesInEveryOrder, FailOnlyAffectedOperations) {
  for (const int polls : {0, 1, 2, 5, 30})
    for (std::size_t messages = 0; messages < 7; ++messages)
      for (const bool waits : {true, false}) {
        SCOPED_TRACE(::testing::Message() << polls << " polls, then " << messages << " messages, "
                                          << (waits ? "waited for" : "not waited for"));
        OneLoss({polls, messages, waits}).run();
      }
}

class Losses : public ::testing::Test, public LateRanks {};

/// The fault of a polled transport.
std::string fault_of(Transport& transport, Clock::time_point until) {
  while (Clock::now() < until) try {
      transport.progress();
      std::this_thread::sleep_for(1ms);
    } catch (const TransportError& error) {
      return error.what();
    }
  return "no fault";
}

// Isolated channels fail at once. Ordinary fault domains fail only after no rank has explained the
// loss.
TEST_F(Losses, FailIsolatedChannelsBeforeOrdinaryDomains) {
  Watched waits{on(1).receive({.name = "receive"}, 0, 8)};
  kill(0);
  poll(1);
  EXPECT_TRUE(waits.ended());
  transports_[1]->progress();
  for (const int rank : {1, 2})
    EXPECT_TRUE(says(fault_of(*transports_[static_cast<std::size_t>(rank)], Clock::now() + 20s),
                     "the transport was aborted: the queues say so"));
}

TEST_F(Losses, ReportReasonGivenByAnotherRank) {
  kill(0);
  poll(1);
  transports_[2]->abort("rank 0 had no tea");
  EXPECT_TRUE(says(fault_of(*transports_[1], Clock::now() + 20s), "rank 0 had no tea"));
}

// Splits without the lost rank, and with the lost rank.
TEST_F(Losses, DoNotAffectDomainsCreatedLater) {
  kill(0);
  poll(1);
  const std::vector<int> two = {1, 2}, all = {0, 1, 2};
  const auto one = on(1).split(two), other = on(2).split(two);
  const auto vain = on(1).split(all);
  std::vector<float> values(1000, 1.0f), others(1000, 2.0f);
  Watched sums[] = {{one->sum({}, cut(values, {500, 500}))},
                    {other->sum({}, cut(others, {500, 500}))}};
  EXPECT_TRUE(finish({&sums[0], &sums[1]}));
  EXPECT_EQ(values, std::vector<float>(1000, 3.0f));
  EXPECT_EQ(values, others);
  EXPECT_THROW(vain->barrier({.name = "barrier", .timeout = 20s}).wait_synchronize(),
               TransportError);
  one->progress();
}

}  // namespace
}  // namespace tersor::test
