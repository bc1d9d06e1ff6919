// Flow control: the lead of a sender over an inactive receiver, and the delivery of all requested
// messages.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tests/transport/calls.h"
#include "tests/transport/late_wire.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

class TransportFlow : public OnFabric {};

INSTANTIATE_TEST_SUITE_P(Fabrics, TransportFlow, ::testing::ValuesIn(fabrics()), fabric_name);
INSTANTIATE_TEST_SUITE_P(Late, TransportFlow, ::testing::Values(late_fabric()), fabric_name);

constexpr std::size_t kMostEager = Wire::Traits().most_eager_bytes;

void meet(Transport& transport) { transport.barrier(operation_of(transport)).wait_synchronize(); }

/// TaggedMessages from rank 0 to rank 1, each with a separate tag.
struct TaggedMessages {
  TaggedMessages(Transport& transport, std::size_t count, std::size_t bytes)
      : contents(std::make_shared<std::vector<std::byte>>(pattern(bytes, 0, 1))) {
    for (std::size_t i = 0; i < count; ++i) {
      operations.push_back(operation_of(transport));
      operations.back().keep_alive = contents;
    }
  }
  ConstByteSpan bytes() const { return *contents; }

  std::shared_ptr<std::vector<std::byte>> contents;
  std::vector<Operation> operations;
};

/// Starts all sends, waits for the other rank, and counts completed sends.
std::size_t sent_ahead(Transport& transport, Transport& other, const TaggedMessages& messages,
                       std::vector<Handle>& handles) {
  for (const Operation& operation : messages.operations)
    handles.push_back(transport.send(operation, 1, messages.bytes()));
  meet(other);
  std::size_t done = 0;
  for (Handle& handle : handles) done += handle.test() ? 1 : 0;
  meet(other);
  return done;
}

/// Receives in reverse order.
void take_all(Transport& transport, const TaggedMessages& messages) {
  for (std::size_t i = messages.operations.size(); i-- > 0;) {
    Handle handle = transport.receive(messages.operations[i], 0, messages.bytes().size());
    handle.wait_synchronize();
    ASSERT_TRUE(equal_bytes(handle.received(0), messages.bytes())) << i;
  }
}

void send_eagerly(Transport& transport, std::size_t count, std::size_t bytes) {
  const auto other = transport.channel();
  const TaggedMessages messages(transport, count, bytes);
  if (transport.rank() == 0) {
    std::vector<Handle> handles;
    EXPECT_LE(sent_ahead(transport, *other, messages, handles) * bytes, kMostEager);
    for (Handle& handle : handles) handle.wait_synchronize();
  } else {
    meet(*other);
    meet(*other);
    if (transport.rank() == 1) take_all(transport, messages);
  }
  meet(transport);
}

TEST_P(TransportFlow, BoundsEagerSendsAndAllowsAnyReceiveOrder) {
  run(3, [](Transport& transport) {
    send_eagerly(transport, 60, 400'000);
    send_eagerly(transport, 8'000, 100);
    send_eagerly(transport, 2, kMostEager + 1);
    send_eagerly(transport, 60, 400'000);  // all credits are available again
  });
}

// TaggedMessages with equal tags keep their order, whether eager or rendezvous.
TEST_P(TransportFlow, EqualTagsKeepTheirOrder) {
  constexpr std::size_t kCount = 60, kBytes = 700'000;
  run(2, [](Transport& transport) {
    const Operation operation = operation_of(transport);
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto contents = pattern(i % 2 == 0 ? kBytes : 10, 0, static_cast<int>(i));
      Operation owned = operation;
      const auto kept = std::make_shared<std::vector<std::byte>>(contents);
      owned.keep_alive = kept;
      if (transport.rank() == 0) {
        handles.push_back(transport.send(owned, 1, *kept));
      } else {
        Handle handle = transport.receive(operation, 0, kBytes);
        handle.wait_synchronize();
        EXPECT_TRUE(equal_bytes(handle.received(0), contents)) << i;
      }
    }
    for (Handle& handle : handles) handle.wait_synchronize();
    meet(transport);
  });
}

// A waiting sender gets an error when its receiver leaves. All errors name the receiver.
TEST_P(TransportFlow, AllRanksReportDepartedReceiver) {
  if (GetParam().most_ranks < 3) GTEST_SKIP() << "needs 3 ranks";
  const auto errors = errors_of(GetParam(), 3, [](Transport& transport) {
    auto channel = transport.channel();
    if (transport.rank() == 0)
      channel->send(operation_of(*channel, "giving"), 1, pattern(kMostEager + 1, 0, 1))
          .wait_synchronize();
    if (transport.rank() == 1) channel = nullptr;
    transport.barrier(operation_of(transport)).wait_synchronize();
  });
  expect_all_fail(errors, {"giving on rank 0: rank 1 left"});
}

TEST_P(TransportFlow, AllRanksReportStalledReceiverAtTimeout) {
  if (GetParam().most_ranks < 3) GTEST_SKIP() << "needs 3 ranks";
  const auto errors = errors_of(GetParam(), 3, [](Transport& transport) {
    Operation giving = operation_of(transport, "giving"), after = operation_of(transport, "after");
    giving.timeout = std::chrono::milliseconds(300);
    if (transport.rank() == 0)
      transport.send(giving, 1, pattern(kMostEager + 1, 0, 1)).wait_synchronize();
    if (transport.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    transport.barrier(after).wait_synchronize();
  });
  expect_all_fail(errors, {"giving on rank 0: no message from rank 1 within 300 ms"});
}

// The receiver started to receive the message, and the rest is missing. Errors must name the
// sender.
TEST_P(TransportFlow, ReportsSenderOfPartialMessage) {
  if (GetParam().most_ranks < 3) GTEST_SKIP() << "needs 3 ranks";
  const auto message = pattern(kMostEager + 1, 0, 1);
  for (const bool takes_any : {false, true}) {
    const auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
      Operation half = operation_of(transport, "half"), after = operation_of(transport, "after");
      after.timeout = std::chrono::milliseconds(800);  // a busy rank 1 must answer in time
      Handle handle;
      if (transport.rank() == 0) handle = transport.send(half, 1, message);
      meet(*transport.channel());
      if (transport.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
      if (transport.rank() == 1)
        handle = takes_any && transport.traits().receive_any
                     ? transport.receive_any(half, message.size())
                     : transport.receive(half, 0, message.size());
      if (transport.rank() == 2) handle = transport.receive(after, 1, 8);
      if (transport.rank() != 0) handle.wait_synchronize();
    });
    if (errors[1].empty()) GTEST_SKIP() << "it comes while its sender does nothing";
    EXPECT_TRUE(says(errors[2], "after on rank 2: no message from rank 0 within"));
  }
}

}  // namespace
}  // namespace tersor::test
