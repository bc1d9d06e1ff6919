// Peers without the secret, or with a false rank: such connections are dropped or reported, and the
// ranks continue.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <tersor/agreement.h>
#include <tersor/collectives.h>
#include <tersor/wire.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transport/host/head.h"
#include "tests/tcp/fake_peer.h"
#include "tests/tcp/meeting.h"
#include "tests/tcp/system_calls.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

const std::string kGroupSecret(64, '5');  // 64 digits avoid the slow stretching of a phrase
const std::string kOldSecret(64, '6');
constexpr std::size_t kGatheredBytes = 100'000;

/// Ranks given by addresses. Some ranks are threads of the test, others are simulated.
class TcpStrangers : public ::testing::Test {
 protected:
  void use_addresses(int ranks) { addresses_ = free_addresses(ranks); }
  const std::string& address(int rank) const { return addresses_[static_cast<std::size_t>(rank)]; }

  std::unique_ptr<Transport> rank(int number, TcpOptions options = {}) const {
    return make_tcp_transport(addresses_, kGroupSecret, number, options);
  }
  tcp::Hello hello(int from, int to) const {
    return {.from = static_cast<std::uint32_t>(from),
            .to = static_cast<std::uint32_t>(to),
            .ranks = static_cast<std::uint32_t>(addresses_.size()),
            .connections = 1,
            .connection = 0};
  }

  /// Runs `before` after rank 0 listens, then expects an exchange between all ranks.
  void expect_exchange(const std::function<void()>& before) const {
    std::vector<std::unique_ptr<Transport>> transports;
    for (std::size_t number = 0; number < addresses_.size(); ++number)
      transports.push_back(rank(static_cast<int>(number)));
    before();
    run_ranks(std::move(transports), [](Transport& transport) {
      const auto own = pattern(kGatheredBytes, transport.rank(), 0);
      Handle handle = transport.all_gather({.name = "gather", .timeout = 20s}, own, kGatheredBytes);
      handle.wait_synchronize();
      expect_patterns(handle, transport, kGatheredBytes, 0);
    });
  }

  /// The error of rank 0 after a vain wait for rank 1.
  std::string error_of(Transport& transport, std::chrono::milliseconds timeout = 20s) const {
    try {
      exchange_all(transport, {.name = "exchange", .timeout = timeout}, pattern(1000, 0, 1));
    } catch (const TransportError& error) {
      return error.what();
    }
    return "no error";
  }

  std::vector<std::string> addresses_;
  const tcp::Secret secret_{kGroupSecret};
};

constexpr std::size_t kManySilent = 300;  // more than the simultaneous handshakes of a rank

std::size_t allowed_files(std::size_t wanted) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return std::min<std::size_t>(wanted, limit.rlim_cur - std::min<rlim_t>(limit.rlim_cur, 1000));
}

TEST_F(TcpStrangers, TenThousandSilentConnectionsDoNotBlockRanks) {
  use_addresses(3);
  const std::size_t count = allowed_files(10'000);
  if (count < kManySilent) GTEST_SKIP() << "too few descriptors are allowed here";
  std::vector<std::unique_ptr<FakePeer>> silent;
  expect_exchange([&] {
    while (silent.size() < count) silent.push_back(std::make_unique<FakePeer>(address(0)));
    for (std::size_t first = 0; first < count - kManySilent; ++first)
      ASSERT_TRUE(silent[first]->is_dropped()) << first << " of " << count;
    EXPECT_FALSE(silent.back()->has_news()) << "the last one is dropped, too";
  });
}

TEST_F(TcpStrangers, DropsForeignProtocol) {
  use_addresses(2);
  expect_exchange([&] {
    FakePeer browser(address(0));
    browser.say("GET /index.html HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser\r\n\r\n");
    EXPECT_TRUE(browser.is_dropped());
  });
}

TEST_F(TcpStrangers, PartialHelloDoesNotBlockRanks) {
  use_addresses(2);
  std::vector<std::unique_ptr<FakePeer>> halves;
  expect_exchange([&] {
    const tcp::ClientHandshake client(secret_, hello(1, 0));
    for (std::size_t bytes = 1; bytes < client.first_message().size(); bytes += 9) {
      halves.push_back(std::make_unique<FakePeer>(address(0)));
      halves.back()->say(client.first_message().first(bytes));
    }
  });
}

TEST_F(TcpStrangers, DropsCallerWithOldSecret) {
  use_addresses(2);
  expect_exchange([&] {
    FakePeer old(address(0));
    EXPECT_FALSE(old.call(tcp::Secret(kOldSecret), hello(1, 0)).has_value());
  });
}

TEST_F(TcpStrangers, ReportsRankWithDifferentSecret) {
  use_addresses(2);
  const auto transport = rank(0);
  const auto other = make_tcp_transport(addresses_, kOldSecret, 1);
  const std::string error = error_of(*transport);
  EXPECT_TRUE(says(error, "rank 1") && says(error, "does not know the secret of this group"));
}

// A late look makes the connection and the page arrive together.
TEST_F(TcpStrangers, ReportsForeignProgramAtRankPort) {
  for (int look = 0; look < 8; ++look) {
    use_addresses(2);
    const auto transport = rank(0);
    const auto colon = address(1).rfind(':');
    asio::ip::tcp::acceptor program(
        test_context(), {asio::ip::address_v4::loopback(),
                         static_cast<std::uint16_t>(std::stoi(address(1).substr(colon + 1)))});
    std::latch reported(1);
    std::jthread speaker([&] {
      auto socket = program.accept();
      const std::string page(100, '!');
      asio::write(socket, asio::buffer(page));
      reported.wait();  // closing an unread socket would reset the connection and discard the page
    });
    const LateLook late(look, 20ms);
    const std::string error = error_of(*transport, 5s);
    reported.count_down();
    EXPECT_TRUE(says(error, "rank 1"));
    EXPECT_TRUE(says(error, address(1)));
  }
}

TEST_F(TcpStrangers, VerifiesCallerClaims) {
  use_addresses(3);
  const auto transport = rank(0);
  const auto answer = [&](const tcp::Hello& hello) {
    return FakePeer(address(0)).call(secret_, hello);
  };
  EXPECT_EQ(answer(hello(1, 2)), tcp::Verdict::kWrongRank);
  EXPECT_FALSE(answer(hello(0, 0)).has_value());
  EXPECT_EQ(answer(hello(3, 0)), tcp::Verdict::kRankTaken);
  tcp::Hello other = hello(1, 0);
  other.ranks = 4;
  EXPECT_EQ(answer(other), tcp::Verdict::kOtherGroupSize);
  other = hello(1, 0);
  other.connections = 2;
  EXPECT_EQ(answer(other), tcp::Verdict::kOtherConnections);
  other.connections = 1;
  other.connection = 1;
  EXPECT_EQ(answer(other), tcp::Verdict::kOtherConnections);
  other = hello(1, 0);
  other.protection = 1;
  EXPECT_EQ(answer(other), tcp::Verdict::kOtherProtection);
  FakePeer first(address(0));
  EXPECT_EQ(first.call(secret_, hello(1, 0)), tcp::Verdict::kAccepted);
  EXPECT_EQ(answer(hello(1, 0)), tcp::Verdict::kRankTaken);
}

TEST_F(TcpStrangers, RejectsDuplicateRank) {
  use_addresses(3);
  const auto transport = rank(0);
  FakePeer first(address(0));
  ASSERT_EQ(first.call(secret_, hello(1, 0)), tcp::Verdict::kAccepted);
  const auto second = rank(1);
  expect_error<TransportError>(
      [&] {
        second->send({.name = "send", .timeout = 20s}, 0, pattern(10, 1, 0)).wait_synchronize();
        second->receive({.name = "receive", .timeout = 20s}, 0, 10).wait_synchronize();
      },
      "each process needs a rank of its own");
}

TEST_F(TcpStrangers, ReportsRankWithDifferentProtection) {
  use_addresses(2);
  const auto transport = rank(0), other = rank(1, {.protect = TcpProtection::kAuthenticate});
  const std::string error = error_of(*transport);
  EXPECT_TRUE(says(error, "rank 1 has another value of protect"));
}

TEST_F(TcpStrangers, ReportsRankWithDifferentSharedSecret) {
  use_addresses(2);
  const auto transport = rank(0, {.secret = kOldSecret}), other = rank(1);
  const std::string error = error_of(*transport);
  EXPECT_TRUE(says(error, "rank 1"));
  EXPECT_TRUE(says(error, "another secret"));
}

// A stranger receives the challenge, and zeros after a wrong proof.
TEST_F(TcpStrangers, AStrangerReceivesNoMac) {
  use_addresses(2);
  const auto transport = rank(0);
  FakePeer stranger(address(0));
  const tcp::ClientHandshake client(tcp::Secret(kOldSecret), hello(1, 0));
  stranger.say(client.first_message());
  EXPECT_EQ(stranger.hear(sizeof(tcp::Challenge)).size(), sizeof(tcp::Challenge));
  EXPECT_FALSE(stranger.has_news());
  stranger.say(pattern(tcp::kDigestBytes, 1, 0));
  EXPECT_EQ(stranger.hear(sizeof(tcp::Answer)),
            std::vector<std::byte>(sizeof(tcp::Answer), std::byte{0}));
  EXPECT_TRUE(stranger.is_dropped());
}

TEST_F(TcpStrangers, DetectsDifferentAddressLists) {
  use_addresses(2);
  const auto transport = rank(0);
  std::vector<std::string> more = addresses_;
  more.push_back(free_addresses(1).front());
  const auto other = make_tcp_transport(more, kGroupSecret, 1);
  expect_error<TransportError>(
      [&] {
        other->receive({.name = "receive", .timeout = 20s}, 0, 10);
        other->send({.name = "send", .timeout = 20s}, 0, {}).wait_synchronize();
        other->receive({.name = "receive", .tag = 1, .timeout = 20s}, 0, 10).wait_synchronize();
      },
      "rank 0 belongs to a group of another size than 3 ranks");
}

/// Rank 0 of two, and a simulated, already authenticated rank 1.
class TcpPlayedPeer : public TcpStrangers {
 protected:
  void SetUp() override {
    use_addresses(2);
    transport_ = rank(0);
    peer_.emplace(address(0));
    ASSERT_EQ(peer_->call(secret_, hello(1, 0)), tcp::Verdict::kAccepted);
  }

  std::unique_ptr<Transport> transport_;
  std::optional<FakePeer> peer_;
};

TEST_F(TcpPlayedPeer, PartialHeaderFailsAtTimeout) {
  const MessageHead head = host::to_message_head({});
  peer_->say(std::as_bytes(std::span(&head, 1)).first(30));
  const std::string error = error_of(*transport_, 100ms);
  EXPECT_TRUE(says(error, "no message from rank 1 within 100 ms"));
}

TEST_F(TcpPlayedPeer, ReportsDisconnectedRank) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{30}}) {
    SetUp();
    const MessageHead head = host::to_message_head({});
    peer_->say(std::as_bytes(std::span(&head, 1)).first(bytes));
    peer_->close();
    const std::string error = error_of(*transport_);
    EXPECT_TRUE(says(error, "the connection to rank 1 broke"));
  }
}

// The lost connection is detected while the late rank queries the cause.
TEST_F(TcpPlayedPeer, ReportsDisconnectedRankAndOperationAtTimeout) {
  peer_->close();
  const std::string error = error_of(*transport_, 200ms);
  EXPECT_TRUE(says(error, "exchange"));
  EXPECT_TRUE(says(error, "rank 1"));
}

TEST_F(TcpPlayedPeer, ReportsRankSendingNoise) {
  peer_->say(pattern(1000, 1, 0));
  const std::string error = error_of(*transport_);
  EXPECT_TRUE(says(error, "rank 1 uses another version"));
}

// The proven rank number counts, regardless of the rank in messages.
TEST_F(TcpPlayedPeer, ReportsForgedSender) {
  for (const int from : {0, 2, 1000, -1}) {
    SetUp();
    host::Head head;
    head.channel = Signature().value();  // of all ranks
    head.from = from;
    const MessageHead message = host::to_message_head(head);
    peer_->say(std::as_bytes(std::span(&message, 1)));
    const std::string error = error_of(*transport_);
    EXPECT_TRUE(says(error, "rank 1 sends in the name of another rank"));
  }
}

TEST_F(TcpPlayedPeer, IgnoresAnswerWithInvalidRank) {
  for (const std::int32_t rank : {2, 1000, -2, std::numeric_limits<std::int32_t>::min()}) {
    SetUp();
    host::Head head;
    head.channel = Signature().value();
    head.type = host::MessageType::kAnswer;
    head.part = 1;  // the first query
    head.from = rank;
    const MessageHead message = host::to_message_head(head);
    peer_->say(std::as_bytes(std::span(&message, 1)));
    const std::string error = error_of(*transport_, 100ms);
    EXPECT_TRUE(says(error, "no message from rank 1 within 100 ms"));
  }
}

// Rank 1 sends options, a mismatch or a fault with a malformed payload.
TEST_F(TcpPlayedPeer, ReportsMalformedAgreement) {
  const auto valid = pack(std::vector<std::string>{"mismatch", "1", "codec", "int8"});
  const auto options = std::as_bytes(std::span(valid));
  const std::vector<std::byte> huge(8, std::byte{0xff});
  struct Malformed {
    host::MessageType type;
    const char* error;
    ConstByteSpan payload;
  };
  std::vector<Malformed> messages;
  for (const auto& [kind, error] :
       {std::pair{host::MessageType::kOptions, "sends options that cannot be read"},
        std::pair{host::MessageType::kCompare, "sends a mismatch that cannot be read"},
        std::pair{host::MessageType::kFault, "rank 1 announces a fault that cannot be read"}})
    for (const ConstByteSpan payload : {ConstByteSpan(), options.first(3),
                                        options.first(options.size() - 1), ConstByteSpan(huge)})
      messages.push_back({kind, error, payload});
  for (const auto& [kind, wanted, payload] : messages) {
    SetUp();
    host::Head head;
    head.channel = Signature().value();
    head.type = kind;
    head.part = head.from = 1;
    head.envelope.bytes = payload.size();
    const MessageHead message = host::to_message_head(head);
    peer_->say(std::as_bytes(std::span(&message, 1)));
    peer_->say(payload);
    const std::string error = error_of(*transport_);
    EXPECT_TRUE(says(error, "rank 1"));
    EXPECT_TRUE(says(error, wanted));
  }
}

// Rank 1 reads nothing until rank 0 has an error and reuses the memory of the gradient.
TEST_F(TcpPlayedPeer, GradientMayBeReusedAfterError) {
  constexpr float kLater = 0x1.abcdep7f;
  std::vector<float> gradient(std::size_t{16} << 20, 1.0f);
  const CollectiveOptions options{
      .codec = "none", .algorithm = Algorithm::kNative, .timeout = 200ms};
  EXPECT_THROW(allreduce(*transport_, gradient, options), TransportError);
  std::ranges::fill(gradient, kLater);
  const std::jthread leaves([&] { transport_.reset(); });
  const std::vector<std::byte> sent = peer_->hear(gradient.size() * sizeof(float));
  std::vector<float> values(sent.size() / sizeof(float));
  std::memcpy(values.data(), sent.data(), values.size() * sizeof(float));
  EXPECT_GT(std::ranges::count(values, 1.0f), 0);
  EXPECT_EQ(std::ranges::count(values, kLater), 0) << "of " << values.size();
}

TEST_F(TcpPlayedPeer, ReportsAbsurdMessageLength) {
  host::Head absurd;
  absurd.envelope.bytes = std::size_t{1} << 60;
  const MessageHead head = host::to_message_head(absurd);
  peer_->say(std::as_bytes(std::span(&head, 1)));
  const std::string error = error_of(*transport_);
  EXPECT_TRUE(says(error, "rank 1 announces a message of 1152921504606846976 bytes"));
}

}  // namespace
}  // namespace tersor::test
