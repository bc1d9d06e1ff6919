// TcpOptions::protect: records in isolation, and connections with modified bytes. A modified byte
// causes an error naming a rank, and never wrong values.
#include "comm/transport/tcp/records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <asio/write.hpp>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "tests/tcp/fake_peer.h"
#include "tests/tcp/meeting.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
using tcp::Records;
using RecordData = std::vector<std::byte>;

/// The records of both ends of a connection.
struct Ends {
  explicit Ends(TcpProtection protection)
      : first(protection, {.send = keys.send, .receive = keys.receive}),
        second(protection, {.send = keys.receive, .receive = keys.send}) {}

  const tcp::SessionKeys keys{.send = {std::byte{1}}, .receive = {std::byte{2}}};
  Records first, second;
};

/// Seals a record of the bytes, as sent over the connection.
RecordData sealed(Records& records, ConstByteSpan bytes) {
  EXPECT_EQ(records.seal({bytes}), std::min(bytes.size(), tcp::kRecordBytes));
  const RecordData record(records.sealed().begin(), records.sealed().end());
  records.on_sent(record.size());
  return record;
}

/// Opens received bytes arriving `step` bytes at a time.
RecordData opened(Records& records, ConstByteSpan received, std::size_t step = 1 << 20) {
  RecordData all;
  std::array<std::byte, 1000> one;
  std::array<std::byte, 7> two;
  while (true) {
    if (const std::size_t bytes = records.take({one, two}); bytes != 0) {
      all.insert(all.end(), one.begin(), one.begin() + std::min(bytes, one.size()));
      if (bytes > one.size())
        all.insert(all.end(), two.begin(), two.begin() + (bytes - one.size()));
      continue;
    }
    const ByteSpan space = records.receive_buffer();
    const std::size_t now = std::min({step, space.size(), received.size()});
    if (now == 0 || records.damaged()) return all;
    std::copy_n(received.begin(), now, space.begin());
    records.on_received(now);
    received = received.subspan(now);
  }
}

class TcpRecords : public ::testing::TestWithParam<TcpProtection> {};
INSTANTIATE_TEST_SUITE_P(All, TcpRecords,
                         ::testing::Values(TcpProtection::kAuthenticate, TcpProtection::kEncrypt));

TEST_P(TcpRecords, AllBytesArriveInOrder) {
  for (const std::size_t step : {1u, 4096u, 1u << 20}) {
    Ends ends(GetParam());
    const auto sent = pattern(step == 1 ? 3000 : 500'000, 0, 1);
    RecordData received;
    for (std::size_t at = 0, bytes = 1; at < sent.size(); at += bytes, bytes = 3 * bytes + 1) {
      bytes = std::min({bytes, tcp::kRecordBytes, sent.size() - at});
      const auto record = sealed(ends.first, ConstByteSpan(sent).subspan(at, bytes));
      received.insert(received.end(), record.begin(), record.end());
    }
    EXPECT_EQ(opened(ends.second, received, step), sent);
    EXPECT_FALSE(ends.second.damaged());
  }
}

TEST_P(TcpRecords, DetectsAnyChangedBit) {
  std::mt19937 random(3);
  for (std::size_t bit = 0; bit < 8 * (4 + 40 + 16); ++bit) {
    Ends ends(GetParam());
    RecordData record = sealed(ends.first, pattern(40, 0, 1));
    record[bit / 8] ^= std::byte(1 << bit % 8);
    record.resize(200'000);  // so a longer record is complete, too
    EXPECT_TRUE(opened(ends.second, record).empty());
    EXPECT_TRUE(ends.second.damaged()) << "bit " << bit;
    EXPECT_TRUE(opened(ends.second, sealed(ends.first, pattern(40, 0, 1))).empty());
  }
}

TEST_P(TcpRecords, RejectsRecordsOutOfSequenceOrDirection) {
  const auto damaged_by = [&](const std::function<RecordData(Ends&)>& received) {
    Ends ends(GetParam());
    opened(ends.second, received(ends));
    return ends.second.damaged();
  };
  const auto one = [](Ends& ends) { return sealed(ends.first, pattern(40, 0, 1)); };
  EXPECT_FALSE(damaged_by(one));
  EXPECT_TRUE(damaged_by([&](Ends& ends) {  // repeated
    RecordData twice = one(ends);
    twice.insert(twice.end(), twice.begin(), twice.begin() + 60);
    return twice;
  }));
  EXPECT_TRUE(damaged_by([&](Ends& ends) {  // missing
    one(ends);
    return one(ends);
  }));
  EXPECT_TRUE(damaged_by([&](Ends& ends) { return sealed(ends.second, pattern(40, 0, 1)); }));
  EXPECT_TRUE(damaged_by([&](Ends&) {
    Ends other(GetParam() == TcpProtection::kEncrypt ? TcpProtection::kAuthenticate
                                                     : TcpProtection::kEncrypt);
    return one(other);
  }));
}

TEST(TcpRecord, OnlyEncryptionHidesTheBytes) {
  const auto bytes = pattern(40, 0, 1);
  const auto shows = [&](TcpProtection protection) {
    Ends ends(protection);
    const auto record = sealed(ends.first, bytes);
    return !std::ranges::search(record, bytes).empty();
  };
  EXPECT_TRUE(shows(TcpProtection::kAuthenticate));
  EXPECT_FALSE(shows(TcpProtection::kEncrypt));
}

/// A proxy between ranks. Forwards all bytes and may modify them.
class Middle {
 public:
  /// Called with bytes from the caller (true) or the answerer, and the number of earlier bytes.
  using Change = std::function<void(bool from_caller, std::size_t before, RecordData& bytes)>;

  Middle(const std::string& to, Change change)
      : to_(to),
        change_(std::move(change)),
        acceptor_(test_context(), {asio::ip::address_v4::loopback(), 0}),
        address_("127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port())),
        thread_([this] { serve(); }) {}
  ~Middle() {
    FakePeer(address_).close();  // ends `accept`
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  void serve() {
    asio::error_code error;
    auto caller = acceptor_.accept(error);
    asio::ip::tcp::socket answerer(test_context());
    const auto colon = to_.rfind(':');
    answerer.connect({asio::ip::address_v4::loopback(),
                      static_cast<std::uint16_t>(std::stoi(to_.substr(colon + 1)))},
                     error);
    std::jthread back([&] { hand_on(answerer, caller, false); });
    hand_on(caller, answerer, true);
  }
  void hand_on(asio::ip::tcp::socket& from, asio::ip::tcp::socket& to, bool from_caller) {
    asio::error_code error;
    for (std::size_t before = 0; !error;) {
      RecordData bytes(65536);
      bytes.resize(from.read_some(asio::buffer(bytes), error));
      const std::size_t came = bytes.size();
      if (change_ && came != 0) change_(from_caller, before, bytes);
      asio::error_code ignored;
      asio::write(to, asio::buffer(bytes), ignored);
      before += came;
    }
    asio::error_code ignored;
    from.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    to.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  }

  const std::string to_;
  const Change change_;
  asio::ip::tcp::acceptor acceptor_;
  const std::string address_;
  std::jthread thread_;
};

constexpr std::size_t kTamperedBytes = 300'000;
constexpr std::size_t kFarBehindTheHandshake = 20'000;

/// The bytes rank 0 receives from rank 1 through the proxy, or the errors of both ranks.
struct Exchange {
  RecordData received;
  std::vector<std::string> errors = std::vector<std::string>(2);
};

Exchange exchange_through(TcpProtection protection, Middle::Change change) {
  const auto addresses = free_addresses(2);
  const TcpOptions options{.timeout = 20s, .protect = protection};
  const std::string secret(64, '5');
  Exchange found;
  Middle middle(addresses[1], std::move(change));
  const std::vector<std::string> seen = {addresses[0], middle.address()};
  const auto first = make_tcp_transport(seen, secret, 0, options);
  const auto second = make_tcp_transport(addresses, secret, 1, options);
  const auto run = [&](Transport& transport) {
    const int rank = transport.rank();
    try {
      // The lower rank connects. Rank 1 waits for the first message before sending.
      if (rank == 1) transport.receive({.name = "call", .timeout = 20s}, 0, 1).wait_synchronize();
      if (rank == 0)
        transport.send({.name = "call", .timeout = 20s}, 1, pattern(1, 0, 0)).wait_synchronize();
      const auto own = pattern(kTamperedBytes, rank, 0);
      Handle handle = transport.all_gather({.name = "gather", .timeout = 20s}, own, own.size());
      handle.wait_synchronize();
      if (rank == 0) found.received.assign(handle.received(1).begin(), handle.received(1).end());
      transport.barrier({.name = "end", .timeout = 20s}).wait_synchronize();
    } catch (const Error& error) {
      found.errors[static_cast<std::size_t>(rank)] = error.what();
      transport.close();
    }
  };
  std::jthread other([&] { run(*second); });
  run(*first);
  other.join();
  return found;
}

/// Changes a byte of the answerer's payload.
Middle::Change once(const std::function<void(RecordData& bytes, std::size_t at)>& change) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  return [change, done](bool from_caller, std::size_t before, RecordData& bytes) {
    if (from_caller || before + bytes.size() < kFarBehindTheHandshake || done->exchange(true))
      return;
    change(bytes, before > kFarBehindTheHandshake ? 0 : kFarBehindTheHandshake - before - 1);
  };
}

void flip(RecordData& bytes, std::size_t at) { bytes[at] ^= std::byte{1}; }

TEST(TcpTamper, ChangedBytesPassWithoutProtection) {
  const auto found = exchange_through(TcpProtection::kNone, once(flip));
  EXPECT_EQ(found.errors, std::vector<std::string>(2));
  EXPECT_EQ(found.received.size(), kTamperedBytes);
  EXPECT_NE(found.received, pattern(kTamperedBytes, 1, 0)) << "the middle changes nothing";
}

class TcpTampering : public ::testing::TestWithParam<TcpProtection> {};
INSTANTIATE_TEST_SUITE_P(All, TcpTampering,
                         ::testing::Values(TcpProtection::kAuthenticate, TcpProtection::kEncrypt));

TEST_P(TcpTampering, UnchangedBytesArrive) {
  const auto found = exchange_through(GetParam(), {});
  EXPECT_EQ(found.errors, std::vector<std::string>(2));
  EXPECT_EQ(found.received, pattern(kTamperedBytes, 1, 0));
}

TEST_P(TcpTampering, ReportsRankOfChangedBytes) {
  const std::vector<std::function<void(RecordData&, std::size_t)>> changes = {
      flip, [](RecordData& bytes, std::size_t at) { bytes.erase(bytes.begin() + at); },
      [](RecordData& bytes, std::size_t at) { bytes.insert(bytes.begin() + at, bytes[at]); },
      [](RecordData& bytes, std::size_t) { std::ranges::reverse(bytes); }};
  for (const auto& change : changes) {
    const auto found = exchange_through(GetParam(), once(change));
    EXPECT_TRUE(found.received.empty());
    EXPECT_TRUE(says(found.errors[0], "the connection to rank 1 broke: bytes were changed"));
    EXPECT_FALSE(found.errors[1].empty());
  }
}

}  // namespace
}  // namespace tersor::test
