// all_gather in rounds, for many numbers of ranks: results, number of messages, and errors after
// stalls and disagreements.
#include "comm/transport/host/rounds.h"

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <thread>

#include "comm/transport/inproc/wire.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

using host::Channel;
using RankBody = std::function<void(const std::shared_ptr<Channel>&)>;

/// Runs ranks on threads, each with a channel. Returns the text of each rank's TransportError. All
/// channels live until the last rank has ended.
std::vector<std::string> on_channels(int ranks, const Link& link, const RankBody& body) {
  std::vector<std::shared_ptr<host::ProgressEngine>> engines;
  for (auto& wire : inproc::make_wires(ranks, link))
    engines.push_back(std::make_shared<host::ProgressEngine>(std::move(wire)));
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::atomic<int> running{ranks};
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto channel = std::make_shared<Channel>(engines[static_cast<std::size_t>(rank)]);
      try {
        body(channel);
      } catch (const TransportError& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
      --running;
      while (running > 0) std::this_thread::sleep_for(100us);
    });
  threads.clear();
  return errors;
}

/// The input of a rank's gather, with the signature and timeout of all ranks.
struct Gather {
  ConstByteSpan send = {};
  std::size_t capacity = 0;
  std::uint32_t tag = 0;
  std::uint64_t signature = 42;
  std::chrono::milliseconds timeout = 20s;
};

Handle start(const std::shared_ptr<Channel>& channel, const Gather& gather) {
  const Operation operation{.name = "allgather",
                            .signature = gather.signature,
                            .tag = gather.tag,
                            .timeout = gather.timeout};
  const host::Start start{
      channel, operation, {.call = Calling::kGatherInRounds, .signature = gather.signature}};
  return channel->start(make_gather_in_rounds(start, gather.send, gather.capacity));
}

std::size_t length_of(int rank, std::size_t most) {
  return most * static_cast<std::size_t>(rank * 7 % 5) / 4;
}

void expect_lengths_and_patterns(const Handle& handle, const Channel& channel, std::size_t most) {
  for (int rank = 0; rank < channel.ranks(); ++rank) {
    const ConstByteSpan came = handle.received(rank);
    const std::size_t wanted = rank == channel.rank() ? 0 : length_of(rank, most);
    EXPECT_TRUE(equal_bytes(came, pattern(wanted, rank, 0))) << "rank " << rank;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(came.data()) % 16, 0u) << "rank " << rank;
  }
}

class GatherInRounds : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Links, GatherInRounds, ::testing::Values("none", "10Gbit,20us"));

TEST_P(GatherInRounds, DeliversBytesOfAllRanks) {
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 33})
    for (const std::size_t most : {0u, 1u, 17u, 1000u}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << most << " bytes");
      const auto errors = on_channels(ranks, parse_link(GetParam()), [&](const auto& channel) {
        const auto send = pattern(length_of(channel->rank(), most), channel->rank(), 0);
        Handle handle = start(channel, {.send = send, .capacity = most});
        handle.wait_synchronize();
        expect_lengths_and_patterns(handle, *channel, most);
        const auto rounds = std::bit_width(static_cast<unsigned>(ranks - 1));
        const auto locked = channel->engine().lock();
        EXPECT_EQ(channel->state().counters.sent_messages, static_cast<unsigned>(rounds));
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
}

TEST_P(GatherInRounds, SeveralGathersMayOverlapInAnyOrder) {
  const auto errors = on_channels(7, parse_link(GetParam()), [&](const auto& channel) {
    std::array<std::vector<std::byte>, 4> sends;
    std::array<Handle, 4> handles;
    for (std::uint32_t step = 0; step < 4; ++step) {
      const std::uint32_t tag = channel->rank() % 2 == 0 ? step : 3 - step;
      sends[tag] = pattern(100 + tag, channel->rank(), static_cast<int>(tag));
      handles[tag] = start(channel, {.send = sends[tag], .capacity = 200, .tag = tag});
    }
    for (std::uint32_t tag = 0; tag < 4; ++tag) {
      handles[tag].wait_synchronize();
      for (int rank = 0; rank < 7; ++rank)
        if (rank != channel->rank()) {
          EXPECT_TRUE(equal_bytes(handles[tag].received(rank),
                                  pattern(100 + tag, rank, static_cast<int>(tag))));
        }
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

void expect_all_say(const std::vector<std::string>& errors, const std::string& part,
                    std::optional<int> but = std::nullopt) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank)
    if (static_cast<int>(rank) != but) {
      EXPECT_NE(errors[rank].find(part), std::string::npos) << rank << ": " << errors[rank];
    }
}

TEST_P(GatherInRounds, AllRanksReportStalledRank) {
  const auto errors = on_channels(11, parse_link(GetParam()), [](const auto& channel) {
    const auto send = pattern(10, channel->rank(), 0);
    if (channel->rank() == 4) return;
    start(channel, {.send = send, .capacity = 10, .timeout = 200ms}).wait_synchronize();
  });
  expect_all_say(errors, "allgather", 4);
  expect_all_say(errors, "no message from rank 4 within 200 ms", 4);
}

TEST_P(GatherInRounds, SignatureMismatchFailsOnAllRanks) {
  const auto errors = on_channels(6, parse_link(GetParam()), [](const auto& channel) {
    const std::uint64_t signature = channel->rank() == 2 ? 43 : 42;
    start(channel, {.capacity = 10, .signature = signature}).wait_synchronize();
  });
  expect_all_say(errors, "with other arguments");
}

TEST_P(GatherInRounds, OversizedMessageFailsOnAllRanks) {
  const auto errors = on_channels(6, parse_link(GetParam()), [](const auto& channel) {
    const std::vector<std::byte> send(channel->rank() == 1 ? 300 : 200);
    start(channel, {.send = send, .capacity = 200}).wait_synchronize();
  });
  expect_all_say(errors, "rank 1 sends 300 bytes, but this rank expects at most 200");
}

// The transport chooses the algorithm if measurements showed a speedup.
TEST(GatherTuning, SmallGatherOnManyRanksUsesFewMessages) {
  const host::RoundsTuning tuning;
  std::atomic<int> wrong{0};
  run_ranks(tuning.min_ranks, {}, [&](Transport& transport) {
    const auto send = pattern(tuning.max_bytes, transport.rank(), 0);
    Handle handle = transport.all_gather(operation_of(transport), send, send.size());
    handle.wait_synchronize();
    for (const int rank : peers_of(transport))
      wrong += !equal_bytes(handle.received(rank), pattern(send.size(), rank, 0));
    EXPECT_EQ(transport.counters().sent_messages, 8u);
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tersor::test
