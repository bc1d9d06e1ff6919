// Features of the in-process transport only: links as text, make_inprocess_transports, and
// run_ranks.
#include <tersor/inprocess.h>
#include <tersor/network.h>

#include <array>
#include <chrono>
#include <stdexcept>

#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

TEST(Link, ReadsRatesLatenciesAndOverhead) {
  EXPECT_EQ(parse_link("1Gbit,50us").bits_per_second, 1e9);
  EXPECT_EQ(parse_link("1Gbit,50us").latency, 50us);
  EXPECT_EQ(parse_link("2.5Mbit").bits_per_second, 2.5e6);
  EXPECT_EQ(parse_link("300Kbit,1ms").latency, 1ms);
  EXPECT_EQ(parse_link("9600bit,2s").latency, 2s);
  EXPECT_EQ(parse_link("25Gbit,10ns,overhead=1.046").overhead, 1.046);
  EXPECT_EQ(parse_link("1Gbit").overhead, 1.0);
  EXPECT_FALSE(parse_link("none").emulated());
}

TEST(Link, ParsesRanksPerHost) {
  EXPECT_EQ(parse_link("1Gbit").ranks_per_host, 1);
  EXPECT_EQ(parse_link("1Gbit,per_host=2").ranks_per_host, 2);
  EXPECT_EQ(parse_link("1Gbit,50us,per_host=16").ranks_per_host, 16);
  EXPECT_EQ(parse_link("1Gbit,50us,per_host=16").latency, 50us);
  EXPECT_EQ(parse_link("1Gbit,overhead=2,per_host=3").ranks_per_host, 3);
  EXPECT_EQ(parse_link("1Gbit,overhead=2,per_host=3").overhead, 2);
  EXPECT_FALSE(parse_link("none,per_host=4").emulated());
  EXPECT_EQ(parse_link("none,per_host=4").ranks_per_host, 4);
}

TEST(Link, TextRoundTrips) {
  for (const char* text :
       {"none", "1Gbit", "1Gbit,50us", "100Mbit,1.5ms", "2.5Gbit,7ns", "25Gbit,10us,overhead=1.046",
        "9.6Kbit,0ns,overhead=2", "none,per_host=2", "1Gbit,per_host=2", "1Gbit,50us,per_host=3",
        "1Gbit,50us,overhead=1.5,per_host=3"})
    EXPECT_EQ(parse_link(text).text(), text);
  EXPECT_EQ(parse_link("1000Mbit,1000us").text(), "1Gbit,1ms");
}

TEST(Link, RejectsInvalidTextAndShowsGrammar) {
  for (const char* text : {"",
                           "fast",
                           "1",
                           "1Gb",
                           "Gbit",
                           "0Gbit",
                           "-1Gbit",
                           "1Gbit,",
                           "1Gbit,50",
                           "1Gbit,-5us",
                           "1Gbit,50us,",
                           "1Gbit,50us,1.05",
                           "1Gbit,50us,overhead=0.5",
                           "1Gbit,50us,overhead=",
                           "1Gbit,50us,overhead=1.1,x",
                           "nanGbit",
                           "infGbit",
                           "1Gbit 50us",
                           "none,50us",
                           "nonesuch",
                           "none,",
                           "none,overhead=2",
                           "none,per_host=2,",
                           "1Gbit,per_host=0",
                           "1Gbit,per_host=-1",
                           "1Gbit,per_host=",
                           "1Gbit,per_host=1.5",
                           "1Gbit,per_host=2,50us",
                           "per_host=2",
                           "1Gbit,per_host=2,per_host=2",
                           "1Gbit,per_host=2,overhead=2",
                           "1Gbit,per_host=99999999999"})
    try {
      parse_link(text);
      ADD_FAILURE() << text;
    } catch (const InvalidArgumentError& error) {
      EXPECT_NE(
          std::string(error.what()).find("RATE|none[,LATENCY][,overhead=FACTOR][,per_host=RANKS]"),
          std::string::npos);
    }
}

TEST(InProcess, RejectsZeroRanks) {
  EXPECT_THROW(make_inprocess_transports(0), InvalidArgumentError);
  EXPECT_THROW(make_inprocess_transports(2, {.ranks_per_host = 0}), InvalidArgumentError);
}

TEST(InProcess, AssignsRanksToHosts) {
  run_ranks(5, parse_link("none,per_host=2"), [](Transport& transport) {
    EXPECT_EQ(transport.hosts(), (std::vector<int>{0, 0, 1, 1, 2}));
    if (transport.rank() < 2) return;
    const auto split = transport.split(std::array{2, 3, 4});
    EXPECT_EQ(split->hosts(), (std::vector<int>{0, 0, 1}));
    EXPECT_EQ(split->channel()->hosts(), (std::vector<int>{0, 0, 1}));
  });
  run_ranks(3, {}, [](Transport& transport) {
    EXPECT_EQ(transport.hosts(), (std::vector<int>{0, 1, 2}));
  });
}

// A single thread may hold all ranks if every rank starts an operation before the first wait.
TEST(InProcess, SingleThreadMayHoldAllRanks) {
  const auto transports = make_inprocess_transports(3);
  std::vector<std::vector<float>> values(3, std::vector<float>(50'000, 1.0f));
  std::vector<Handle> handles;
  for (std::size_t rank = 0; rank < 3; ++rank)
    handles.push_back(transports[rank]->sum({.name = "sum"}, cut(values[rank], {1, 2, 49'997})));
  for (bool done = false; !done;) {
    done = true;
    for (Handle& handle : handles) done = handle.test() && done;
  }
  for (const auto& sums : values) EXPECT_EQ(sums, std::vector<float>(50'000, 3.0f));
}

TEST(InProcess, HandlesMayOutliveTransports) {
  Handle handle;
  {
    const auto transports = make_inprocess_transports(2);
    const auto bytes = pattern(100, 0, 1);
    transports[0]->send({.name = "send"}, 1, bytes).wait_synchronize();
    handle = transports[1]->receive({.name = "receive"}, 0, 100);
    handle.wait_synchronize();
  }
  EXPECT_TRUE(equal_bytes(handle.received(0), pattern(100, 0, 1)));
}

// The receiver reads a block in the sender's memory. The block lives until its last reference ends.
TEST(InProcess, SharesBlockMemoryWithReceiver) {
  const auto transports = make_inprocess_transports(2);
  const auto &one = transports[0], &other = transports[1];
  const auto bytes = pattern(2000, 0, 1);
  Block block = one->block(3000);
  const ByteSpan sent = block.writable().subspan(1000, bytes.size());
  std::ranges::copy(bytes, sent.begin());
  one->send({.name = "send", .block = &block}, 1, sent).wait_synchronize();
  block = {};
  Handle handle = other->receive({.name = "receive"}, 0, bytes.size());
  handle.wait_synchronize();
  EXPECT_EQ(handle.received(0).data(), sent.data());
  EXPECT_NE(one->block(3000).writable().data(), sent.data() - 1000) << "it is still read";
  EXPECT_TRUE(equal_bytes(handle.received(0), bytes));
  handle = {};
  EXPECT_EQ(one->block(3000).writable().data(), sent.data() - 1000);
}

TEST(InProcess, RejectsResultBeforeCompletion) {
  const auto transports = make_inprocess_transports(2);
  Handle handle = transports[0]->receive({.name = "receive"}, 1, 8);
  EXPECT_FALSE(handle.test());
  EXPECT_THROW(handle.received(1), InvalidArgumentError);
}

TEST(RunRanks, RethrowsRankException) {
  EXPECT_THROW(run_ranks(3, {},
                         [](Transport& transport) {
                           if (transport.rank() == 1) throw std::domain_error("mine");
                           transport.barrier({.name = "barrier"}).wait_synchronize();
                         }),
               std::domain_error);
  EXPECT_THROW(run_ranks(2, {}, [](Transport&) { throw 7; }), int);
}

// The peer's error is raised first, because the throwing rank's channel is destroyed before its
// exception is caught.
TEST(RunRanks, PrefersTheCauseToItsConsequences) {
  struct SlowToUnwind {
    std::unique_ptr<Transport> channel;
    ~SlowToUnwind() {
      const bool thrower = channel->rank() == 1;
      channel.reset();
      if (thrower) std::this_thread::sleep_for(50ms);
    }
  };
  EXPECT_THROW(run_ranks(2, {},
                         [](Transport& transport) {
                           const SlowToUnwind own{transport.channel()};
                           if (transport.rank() == 1) throw std::domain_error("mine");
                           own.channel->barrier({.name = "barrier"}).wait_synchronize();
                         }),
               std::domain_error);
}

}  // namespace
}  // namespace tersor::test
