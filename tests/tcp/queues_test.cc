// Conversion between messages and the bytes of connections: messages of any length, split anywhere,
// on any number of connections, delivered in the order of sending.
#include <gtest/gtest.h>
#include <tersor/error.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "comm/transport/host/block_pool.h"
#include "comm/transport/host/head.h"
#include "comm/transport/tcp/message_reader.h"
#include "comm/transport/tcp/send_queue.h"
#include "tests/support/errors.h"
#include "tests/transport/ranks.h"

namespace tersor::tcp {
namespace {

MessageHead head_of(std::size_t bytes, std::uint32_t number,
                    host::MessageType type = host::MessageType::kMessage) {
  host::Head head;
  head.envelope.bytes = bytes;
  head.tag = number;
  head.type = type;
  return host::to_message_head(head);
}

/// Both ends of the connections between two ranks. The test moves the bytes.
class Pair {
 public:
  explicit Pair(std::size_t connections)
      : out_(connections),
        in_(
            1, connections,
            [this](std::size_t bytes) {
              taken_ += bytes;
              return pool_.take(bytes);
            },
            [this](Wire::Arrival arrival) { came_.push_back(std::move(arrival)); }) {}

  void send(const MessageHead& head, ConstByteSpan payload, std::shared_ptr<Job> job = {}) {
    const std::size_t parts = payload.size() < kMinShared ? 1 : out_.size();
    if (job != nullptr) job->open = parts;
    for (std::size_t connection = 0; connection < parts; ++connection) {
      const Share share = share_of(payload.size(), connection, out_.size());
      SendItem item{.head = head,
                    .has_header = connection == 0,
                    .payload = payload.subspan(share.first, share.bytes),
                    .job = job};
      head.is_fault() ? out_[connection].add_first(std::move(item))
                      : out_[connection].add(std::move(item));
    }
  }

  void keep(const Job* job) {
    for (SendQueue& queue : out_)
      queue.copy_unsent(job, [this](std::size_t bytes) { return pool_.take(bytes); });
  }

  /// Moves at most `most` bytes on a connection with one write and one read. Returns the number of
  /// bytes.
  std::size_t move(std::size_t connection, std::size_t most) {
    const ReadBuffers spaces = in_.buffers(connection);
    const WriteBuffers pieces = out_[connection].next();
    std::size_t space = 0, bytes = 0;
    std::vector<std::byte> flat;
    for (const ConstByteSpan piece : pieces) flat.insert(flat.end(), piece.begin(), piece.end());
    for (const ByteSpan target : spaces) space += target.size();
    flat.resize(std::min({most, space, flat.size()}));
    for (const ByteSpan target : spaces) {
      const std::size_t part = std::min(target.size(), flat.size() - bytes);
      if (part != 0) std::memcpy(target.data(), flat.data() + bytes, part);
      bytes += part;
    }
    out_[connection].on_sent(bytes, done_);
    if (bytes != 0) in_.on_received(connection, bytes);
    return bytes;
  }

  void move_all() {
    for (std::size_t connection = 0, idle = 0; idle < out_.size();
         connection = (connection + 1) % out_.size())
      idle = move(connection, 1 << 20) == 0 ? idle + 1 : 0;
  }

  bool all_left() const {
    return std::ranges::all_of(out_, [](const SendQueue& queue) { return queue.empty(); });
  }
  std::vector<Wire::Arrival>& came() { return came_; }
  std::vector<std::shared_ptr<Job>>& done() { return done_; }
  MessageReader& message_reader() { return in_; }
  /// The total bytes of all blocks ever allocated.
  std::size_t taken() const { return taken_; }

 private:
  host::BlockPool pool_;
  std::size_t taken_ = 0;
  std::vector<SendQueue> out_;
  std::vector<Wire::Arrival> came_;
  MessageReader in_;
  std::vector<std::shared_ptr<Job>> done_;
};

TEST(TcpQueues, SharesCoverAPayload) {
  for (const std::size_t connections : {1u, 2u, 3u, 16u})
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kMinShared - 1, kMinShared,
                                    kMinShared + 1, std::size_t{10'000'001}}) {
      std::size_t next = 0;
      for (std::size_t connection = 0; connection < connections; ++connection) {
        const Share share = share_of(bytes, connection, connections);
        if (share.bytes != 0) EXPECT_EQ(share.first, next);
        next += share.bytes;
      }
      EXPECT_EQ(next, bytes) << connections << " connections";
    }
}

// Bytes are split at random, and connections progress in random order.
TEST(TcpQueues, MessagesArriveIntactAndInOrder) {
  for (const std::size_t connections : {1u, 2u, 5u})
    for (unsigned seed = 1; seed <= 10; ++seed) {
      std::mt19937 random(seed);
      Pair pair(connections);
      const std::vector<std::size_t> lengths = {0,     1,     100,    8'127,      8'128,
                                                8'129, 9'000, 70'000, kMinShared, 1'000'003};
      std::vector<std::vector<std::byte>> sent;
      for (int message = 0; message < 60; ++message)
        sent.push_back(test::pattern(lengths[random() % lengths.size()], message, 0));
      std::vector<std::shared_ptr<Job>> jobs;
      for (std::size_t number = 0; number < sent.size(); ++number) {
        jobs.push_back(std::make_shared<Job>());
        pair.send(head_of(sent[number].size(), static_cast<std::uint32_t>(number)), sent[number],
                  jobs.back());
        for (int move = 0; move < 3; ++move)
          pair.move(random() % connections, std::size_t{1} << (random() % 20));
      }
      pair.move_all();
      EXPECT_TRUE(pair.all_left());
      EXPECT_FALSE(pair.message_reader().within_message());
      EXPECT_EQ(pair.done().size(), jobs.size());
      ASSERT_EQ(pair.came().size(), sent.size());
      for (std::size_t number = 0; number < sent.size(); ++number) {
        const Wire::Arrival& arrival = pair.came()[number];
        EXPECT_EQ(host::head_of(arrival.head).tag, number);
        EXPECT_TRUE(test::equal_bytes(arrival.payload.bytes(), sent[number]))
            << "message " << number << ", seed " << seed << ", " << connections << " connections";
      }
    }
}

// Each payload is overwritten after a random number of sent bytes.
TEST(TcpQueues, KeptPayloadsMayBeOverwritten) {
  for (const std::size_t connections : {1u, 2u, 5u})
    for (unsigned seed = 1; seed <= 10; ++seed) {
      std::mt19937 random(seed);
      Pair pair(connections);
      std::vector<std::vector<std::byte>> payloads;
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{9'000},
                                      std::size_t{70'000}, kMinShared, std::size_t{1'000'003}})
        payloads.push_back(test::pattern(bytes, static_cast<int>(payloads.size()), 0));
      const auto sent = payloads;
      std::vector<std::shared_ptr<Job>> jobs;
      for (const auto& payload : payloads) {
        jobs.push_back(std::make_shared<Job>());
        pair.send(head_of(payload.size(), static_cast<std::uint32_t>(jobs.size() - 1)), payload,
                  jobs.back());
      }
      for (std::size_t number = 0; number < jobs.size(); ++number) {
        for (int move = 0; move < 3; ++move)
          pair.move(random() % connections, std::size_t{1} << (random() % 20));
        for (int again = 0; again < 2; ++again) pair.keep(jobs[number].get());
        std::ranges::fill(payloads[number], std::byte{0xee});
      }
      pair.move_all();
      EXPECT_EQ(pair.done().size(), jobs.size());
      ASSERT_EQ(pair.came().size(), sent.size());
      for (std::size_t number = 0; number < sent.size(); ++number)
        EXPECT_TRUE(test::equal_bytes(pair.came()[number].payload.bytes(), sent[number]))
            << "message " << number << ", seed " << seed << ", " << connections << " connections";
    }
}

// A fault follows the message in transmission and precedes all other messages. The receiver need
// not wait for payloads of other connections, because other payloads may never arrive.
TEST(TcpQueues, FaultOvertakesQueuedMessages) {
  Pair pair(2);
  const auto first = test::pattern(1000, 1, 1), second = test::pattern(2 * kMinShared, 2, 2),
             why = test::pattern(50, 3, 3);
  pair.send(head_of(first.size(), 1), first);
  pair.move(0, 10);
  pair.send(head_of(second.size(), 2), second);
  pair.send(head_of(why.size(), 3, host::MessageType::kFault), why);
  pair.move(0, 1 << 20);
  ASSERT_EQ(pair.came().size(), 2u);
  EXPECT_EQ(host::head_of(pair.came()[1].head).tag, 3u);
  pair.move(0, 1 << 20);
  pair.send(head_of(why.size(), 4, host::MessageType::kFault), why);
  while (pair.move(0, 1 << 20) != 0) {
  }
  ASSERT_EQ(pair.came().size(), 3u) << "the second message waits for the other connection";
  EXPECT_EQ(host::head_of(pair.came()[2].head).tag, 4u);
  pair.move_all();
  EXPECT_TRUE(test::equal_bytes(pair.came().back().payload.bytes(), second));
}

// A long payload is not copied if the final memory is available at once.
TEST(TcpQueues, LimitsStagingOfLongPayloads) {
  Pair pair(1);
  const auto payload = test::pattern(1 << 20, 1, 1);
  for (std::uint32_t number = 0; number < 3; ++number) pair.send(head_of(1 << 20, number), payload);
  std::size_t staged = 0;
  while (!pair.all_left()) {
    const ReadBuffers spaces = pair.message_reader().buffers(0);
    const std::size_t moved = pair.move(0, 1 << 20);
    staged += spaces[0].size() > 10'000 ? 0 : moved;
  }
  EXPECT_LE(staged, 10'000u) << "bytes that came into the stage";
  EXPECT_EQ(pair.came().size(), 3u);
}

// A message already in transmission gets memory. Later messages occupy memory only for headers.
TEST(TcpQueues, DroppedPayloadsUseNoMemory) {
  for (const std::size_t connections : {1u, 3u}) {
    Pair pair(connections);
    const auto begun = test::pattern(1 << 20, 1, 1), late = test::pattern(3 << 20, 2, 2);
    pair.send(head_of(begun.size(), 0), begun);
    pair.move(0, 1000);
    pair.message_reader().discard_payloads();
    const std::vector<std::size_t> lengths = {late.size(), 100, 0, 10'000, kMinShared};
    for (std::uint32_t number = 0; number < lengths.size(); ++number)
      pair.send(head_of(lengths[number], number + 1), ConstByteSpan(late).first(lengths[number]));
    pair.move_all();
    EXPECT_EQ(pair.taken(), begun.size());
    ASSERT_EQ(pair.came().size(), 1 + lengths.size());
    EXPECT_TRUE(test::equal_bytes(pair.came().front().payload.bytes(), begun));
    for (std::size_t number = 1; number < pair.came().size(); ++number) {
      EXPECT_EQ(host::head_of(pair.came()[number].head).tag, number);
      EXPECT_FALSE(pair.came()[number].payload);
    }
    EXPECT_FALSE(pair.message_reader().within_message());
  }
}

void expect_refused(const MessageHead& head, const std::string& transcript) {
  Pair pair(1);
  pair.send(head, {});
  test::expect_error<TransportError>([&] { pair.move_all(); }, transcript);
}

TEST(TcpQueues, RejectsMalformedMessages) {
  MessageHead noise;
  noise.content.fill(0x0123456789abcdef);
  expect_refused(noise, "rank 1 uses another version");
  expect_refused(head_of(std::size_t{1} << 50, 1), "rank 1 announces a message of");
}

TEST(TcpQueues, ReaderEndsAfterFinalLeave) {
  Pair pair(1);
  host::Head head;
  head.type = host::MessageType::kLeave;
  pair.send(host::to_message_head(head), {});
  pair.move_all();
  EXPECT_FALSE(pair.message_reader().received_goodbye()) << "it left one channel";
  head.part = 1;
  pair.send(host::to_message_head(head), {});
  pair.move_all();
  EXPECT_TRUE(pair.message_reader().received_goodbye());
}

}  // namespace
}  // namespace tersor::tcp
