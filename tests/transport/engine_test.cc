// The parts of the progress engine without a network: the test records their actions.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport/host/block_pool.h"
#include "comm/transport/host/inquiry.h"

namespace tersor::host {
namespace {

using Kinds = std::vector<std::pair<int, MessageType>>;
constexpr std::size_t kWindow = 8192;

/// The parts of rank 0 of 3. Holds the lock.
struct Parts final : Actions {
  void send(int peer, Head head, Wire::Payload payload) override {
    sent.push_back({peer, head.type});
    last = head;
    payloads.push_back(std::move(payload));
  }
  void receive(IncomingMessage&) override {}
  void keep(int peer, const Wire::Job*) override { kept.push_back(peer); }
  void fail(FaultDomain& domain, const Fault& fault) override {
    if (domain.faulty) return;
    faults.abort(domain, faults.cause(domain, fault));
    delivery.discard(domain);
  }
  bool may_send() const override { return true; }
  std::size_t wire_bytes(std::size_t bytes) const override { return 64 + bytes; }
  Clock::time_point earliest(const Wire::Arrival&) const override { return {}; }

  Parts() { lock.lock(); }
  ~Parts() { lock.unlock(); }
  ChannelState& world() { return channels.world(); }
  ChannelState& isolated() {
    return channels.join(world(), world().members, FaultDomain::Kind::kIsolated);
  }
  Wire::Arrival arrival(int peer, std::string_view text) {
    return {.payload = pool.copy(std::as_bytes(std::span(text))), .peer = peer};
  }

  BlockPool pool;
  SharedLock lock;
  Channels channels{lock, 0, 3};
  Core core{0, 3, {}, lock, pool, channels, *this};
  FaultDomains faults{core};
  FlowControl flow{3, kWindow};
  Delivery delivery{core, faults, flow};
  Inquiry inquiry{core, delivery};
  Kinds sent;
  Head last;
  std::vector<Wire::Payload> payloads;
  std::vector<int> kept;
};

/// A call "gather" with tag 7: receives up to 100 bytes from `from`, and sends `bytes` to rank 1.
struct Call {
  Call(std::optional<int> from, std::size_t bytes) : data(bytes) {
    batch.name = "gather";
    batch.key.tag = 7;
    batch.envelope.signature = 5;
    incoming[0].capacity = 100;
    if (from.has_value()) {
      incoming[0].peer = *from;
      batch.incoming = incoming;
    }
    if (bytes > 0) batch.outgoing = {&outgoing, 1};
    outgoing = {.peer = 1, .payload = data};
    batch.open = static_cast<std::uint32_t>(batch.incoming.size());
  }
  std::vector<std::byte> data;
  std::vector<Incoming> incoming{1};
  Outgoing outgoing;
  Batch batch;
};

/// The header of rank 1's message in the call.
Head head_of_call(const ChannelState& channel, std::size_t bytes, std::uint64_t signature = 5) {
  return {.envelope = {.signature = signature, .bytes = bytes},
          .channel = channel.id,
          .tag = 7,
          .from = 1};
}

TEST(EngineParts, ReceivesCloseBeforeOrAfterTheirMessages) {
  Parts parts;
  for (const bool early : {true, false}) {
    Call call(1, 0);
    if (!early) parts.delivery.post(parts.world(), call.batch);
    EXPECT_FALSE(call.batch.closed());
    parts.delivery.on_message(head_of_call(parts.world(), 5), parts.arrival(1, "bytes"));
    if (early) parts.delivery.post(parts.world(), call.batch);
    EXPECT_TRUE(call.batch.closed());
    EXPECT_EQ(call.incoming[0].payload.bytes().size(), 5u);
    EXPECT_TRUE(parts.lock.will_signal(parts.world().event));
  }
  EXPECT_EQ(parts.world().counters.received_bytes, 2 * (64 + 5));
}

TEST(EngineParts, MessagesBeyondTheCreditsWaitForARequest) {
  Parts parts;
  Call eager({}, 4000), beyond({}, 4000);
  for (Call* call : {&eager, &beyond}) parts.delivery.post(parts.world(), call->batch);
  EXPECT_EQ(parts.sent, (Kinds{{1, MessageType::kMessage}, {1, MessageType::kAnnounced}}));
  EXPECT_EQ(parts.last.envelope.bytes, 4000u);
  const auto payload = parts.flow.take_request(1, 0);
  ASSERT_TRUE(payload.has_value());
  EXPECT_EQ(payload->bytes.size(), 4000u);
  EXPECT_FALSE(parts.flow.take_request(1, 0).has_value());
  EXPECT_EQ(parts.delivery.unsent(beyond.batch), std::vector{1});
  payload->job->done(*payload->job);
  EXPECT_TRUE(beyond.batch.closed());
  EXPECT_FALSE(parts.flow.send_eagerly(1, 4000));
  parts.flow.on_credits(1, 4512);
  EXPECT_TRUE(parts.flow.send_eagerly(1, 4000));
  parts.delivery.cancel(parts.world(), eager.batch);
  EXPECT_EQ(parts.kept, std::vector{1});
}

TEST(EngineParts, CreditsReturnAfterAQuarterOfTheWindow) {
  Parts parts;
  for (int message = 0; message < 4; ++message) {
    EXPECT_TRUE(parts.sent.empty());
    Call call(1, 0);
    parts.delivery.on_message(head_of_call(parts.world(), 5), parts.arrival(1, "bytes"));
    parts.delivery.post(parts.world(), call.batch);
  }
  EXPECT_EQ(parts.sent, (Kinds{{1, MessageType::kCredits}}));
  EXPECT_EQ(parts.last.envelope.count, 4u * (512 + 5));
}

TEST(EngineParts, DepartedRankFailsItsDomainOrOneIsolatedOperation) {
  Parts parts;
  ChannelState& isolated = parts.isolated();
  Call alone(1, 0), common(1, 0);
  parts.delivery.post(isolated, alone.batch);
  parts.delivery.post(parts.world(), common.batch);
  parts.faults.record_departure(1);
  parts.delivery.on_departure(1);
  EXPECT_TRUE(alone.batch.closed());
  ASSERT_NE(alone.batch.error, nullptr);
  EXPECT_THROW(std::rethrow_exception(alone.batch.error), PeerLostError);
  EXPECT_FALSE(isolated.faulty());
  EXPECT_EQ(parts.world().domain->fault.text, "gather on rank 0: rank 1 left");
}

TEST(EngineParts, LossIsAnnouncedLater) {
  Parts parts;
  ASSERT_TRUE(parts.faults.record_loss(2, "no cable"));
  EXPECT_FALSE(parts.faults.record_loss(2, "again"));
  EXPECT_TRUE(parts.faults.departed(parts.isolated(), 2));
  EXPECT_FALSE(parts.faults.departed(parts.world(), 2));
  const Clock::time_point due = parts.faults.next_deadline();
  EXPECT_FALSE(parts.faults.run_due(due - std::chrono::milliseconds(1)));
  EXPECT_TRUE(parts.faults.run_due(due));
  EXPECT_TRUE(parts.faults.departed(parts.world(), 2));
  EXPECT_EQ(parts.world().domain->fault.text, "no cable");
  EXPECT_EQ(parts.faults.next_deadline(), Clock::time_point::max());
}

TEST(EngineParts, DifferentCallsExchangeTheirOptionsFirst) {
  Parts parts;
  ChannelState& channel = parts.world();
  channel.agreements.insert(5, std::make_shared<Agreement>());
  Call call(1, 0);
  parts.delivery.post(channel, call.batch);
  parts.delivery.on_message(head_of_call(channel, 5, 6), parts.arrival(1, "bytes"));
  EXPECT_EQ(parts.sent, (Kinds{{1, MessageType::kOptions}}));
  EXPECT_TRUE(parts.faults.is_comparing(*channel.domain));
  ASSERT_LT(parts.faults.next_deadline(), Clock::time_point::max());
  EXPECT_TRUE(parts.faults.run_due(parts.faults.next_deadline()));
  EXPECT_EQ(channel.domain->fault.text,
            "gather on rank 0: rank 1 calls gather with other arguments (codec, count, dtype, root "
            "or options)");
}

TEST(EngineParts, InquiryFollowsAnswers) {
  Parts parts;
  Call call(1, 0);
  parts.delivery.post(parts.world(), call.batch);
  const Head question{
      .channel = parts.world().id, .tag = 7, .part = 3, .type = MessageType::kQuestion};
  parts.inquiry.on_question(question, 2, false);
  EXPECT_TRUE(parts.inquiry.has_questions());
  parts.inquiry.answer_questions();
  EXPECT_EQ(parts.sent, (Kinds{{2, MessageType::kAnswer}}));
  const int awaited = 1, next = 2;
  EXPECT_TRUE(std::ranges::equal(parts.payloads[0].bytes, std::as_bytes(std::span(&awaited, 1))));

  // Rank 1 waits for rank 2. Rank 2 stays silent.
  const Inquiry::PollUntil poll_until = [&](const std::function<bool()>& done) {
    if (parts.sent.back() == std::pair(1, MessageType::kQuestion))
      parts.inquiry.on_answer({.envelope = {.signature = 5}, .tag = 7, .part = parts.last.part},
                              std::as_bytes(std::span(&next, 1)));
    while (!done()) {
    }
  };
  const FailedRanks failed = parts.inquiry.find(
      parts.world(), {.name = "gather", .tag = 7, .timeout = std::chrono::milliseconds(1)},
      std::vector{1}, poll_until);
  EXPECT_EQ(failed.ranks, std::vector{2});
  EXPECT_EQ(failed.difference, "");
}

}  // namespace
}  // namespace tersor::host
