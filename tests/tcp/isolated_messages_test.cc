// Messages on isolated channels after faults and departures on other channels.
#include <gtest/gtest.h>
#include <tersor/agreement.h>
#include <tersor/error.h>
#include <tersor/tcp.h>
#include <tersor/transport.h>

#include <chrono>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/transport/mailbox.h"
#include "tests/tcp/meeting.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::uint32_t>;

/// Runs `body(rank, transport)` on a thread per rank. A rank leaves when its body returns.
template <typename Body>
void run_leaving(int ranks, const TcpOptions& options, const Body& body) {
  auto transports = tcp_transports(ranks, options);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back(
        [&body, rank, own = std::move(transports[static_cast<std::size_t>(rank)])]() mutable {
          body(rank, std::move(own));
        });
}

// Rank 2 announces two long messages and leaves. The failing receive also drops the second message.
TEST(TcpIsolatedMessages, StayInOrderAfterAnotherSenderLeft) {
  std::latch left(1), failed(1), sent(1), received(1);
  const std::vector<std::string> texts = {"first", "second", "third"};
  run_leaving(3, {}, [&](int rank, std::unique_ptr<Transport> transport) {
    auto isolated = transport->isolated_channel();
    if (rank == 2) {
      const std::vector<std::byte> bytes(20 << 20);
      for (const std::uint32_t tag : {1, 2})
        (void)transport->send({.name = "long", .tag = tag}, 0, bytes);
      isolated.reset();
      transport.reset();
      return left.count_down();
    }
    if (rank == 1) {
      failed.wait();
      std::vector<Handle> handles;
      for (const std::string& text : texts)
        handles.push_back(isolated->send({.name = "text"}, 0, std::as_bytes(std::span(text))));
      for (Handle& handle : handles) handle.wait_synchronize();
      sent.count_down();
      return received.wait();
    }
    left.wait();
    EXPECT_THROW(transport->receive({.name = "long", .tag = 1}, 2, 20 << 20).wait_synchronize(),
                 TransportError);
    failed.count_down();
    sent.wait();
    for (int wait = 0; wait < 4; ++wait) isolated->wait_activity(Clock::now() + 50ms);
    for (const std::string& text : texts) {
      Handle handle = isolated->receive({.name = "text", .timeout = 20s}, 1, 100);
      handle.wait_synchronize();
      const ConstByteSpan bytes = handle.received(1);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), text);
    }
    received.count_down();
  });
}

std::shared_ptr<const Agreement> long_agreement(int rank) {
  auto agreement = std::make_shared<Agreement>();
  for (int i = 0; i < 4000; ++i)
    agreement->begin("model.layers." + std::to_string(i) + ".self_attention.weight")
        .add("shape", "1024 x " + std::to_string(4096 + rank + i));
  agreement->end();
  return agreement;
}

// The differences of ranks 0 and 2 take more than 256 KiB and overtake messages to rank 1.
TEST(TcpIsolatedMessages, AreIntactIfALongFaultOvertakes) {
  constexpr std::size_t kWords = 870'400;
  std::latch failed(1), received(1);
  run_leaving(3, {.connections = 2}, [&](int rank, std::unique_ptr<Transport> transport) {
    const auto isolated = transport->isolated_channel();
    const auto agreement = long_agreement(rank);
    const Operation operation{.name = "call",
                              .signature = agreement->signature(),
                              .agreement = agreement,
                              .tag = 5,
                              .timeout = 20s};
    if (rank == 2) {
      EXPECT_THROW(transport->receive(operation, 0, 8).wait_synchronize(), TransportError);
      return received.wait();
    }
    if (rank == 1) {
      failed.wait();
      for (std::uint32_t message = 0; message < 4; ++message) {
        Handle handle = isolated->receive({.name = "words", .timeout = 20s}, 0, kWords * 4);
        handle.wait_synchronize();
        Words wanted(kWords), found(kWords);
        std::iota(wanted.begin(), wanted.end(), message * 100'000'000u);
        const ConstByteSpan bytes = handle.received(0);
        ASSERT_EQ(bytes.size(), kWords * 4);
        std::memcpy(found.data(), bytes.data(), bytes.size());
        EXPECT_TRUE(found == wanted) << message;
      }
      return received.count_down();
    }
    std::vector<Handle> handles;
    for (std::uint32_t message = 0; message < 4; ++message) {
      const auto words = std::make_shared<Words>(kWords);
      std::iota(words->begin(), words->end(), message * 100'000'000u);
      handles.push_back(isolated->send({.name = "words", .keep_alive = words}, 1,
                                       std::as_bytes(std::span(*words))));
    }
    const std::vector<std::byte> bytes(8);
    (void)transport->send(operation, 2, bytes);
    const std::string error = error_of<TransportError>([&] {
      transport->receive({.name = "never", .tag = 9, .timeout = 20s}, 2, 8).wait_synchronize();
    });
    EXPECT_NE(error.find("self_attention"), std::string::npos) << error.substr(0, 200);
    failed.count_down();
    for (Handle& handle : handles) handle.wait_synchronize();
    received.wait();
  });
}

struct Numbered {
  std::uint64_t number = 0;
};

TEST(TcpIsolatedMessages, MailboxReceivesAfterOversizedMessage) {
  run_ranks(tcp_transports(2), [](Transport& transport) {
    const auto isolated = transport.isolated_channel();
    Mailbox<Numbered> mailbox(*isolated, "numbers", transport.rank() == 0 ? 10 : 2000);
    if (transport.rank() == 1) {
      mailbox.send(0, {1}, std::string(2000, 'x'));
      mailbox.send(0, {2}, "short");
      while (mailbox.unsent(0) != 0) isolated->wait_activity(Clock::now() + 10ms);
    } else {
      int errors = 0;
      std::optional<Mailbox<Numbered>::Message> found;
      while (!found.has_value() && errors < 100) try {
          found = mailbox.receive(1);
          if (!found.has_value()) isolated->wait_activity(Clock::now() + 10ms);
        } catch (const TransportError&) {
          ++errors;
        }
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->header.number, 2u);
      EXPECT_EQ(errors, 1);
    }
    transport.barrier(operation_of(transport)).wait_synchronize();
  });
}

}  // namespace
}  // namespace tersor::test
