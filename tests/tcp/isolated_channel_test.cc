// Processes over TCP with a killed or suspended rank. The other ranks detect the loss on an
// isolated channel and agree on the remaining ranks. They continue on the channel and on a split,
// regardless of the transport's state.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tersor/error.h>
#include <tersor/tcp.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/transport/arguments.h"
#include "tests/support/children.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr int kRanks = 4, kVictim = 2;

/// The ranks with an answer, and this rank.
std::vector<int> find_alive(Transport& isolated_channel, std::chrono::milliseconds timeout) {
  std::vector<Handle> transcript;
  for (const int peer : peers_of(isolated_channel)) {
    const SendTo to{peer, {}};
    const ReceiveFrom from{peer, 0};
    transcript.push_back(isolated_channel.exchange({.name = "alive", .tag = 1, .timeout = timeout},
                                                   {&to, 1}, {&from, 1}));
  }
  std::vector<int> alive = all_ranks(isolated_channel.ranks());
  for (Handle& word : transcript) try {
      word.wait_synchronize();
    } catch (const PeerLostError& lost) {
      std::erase(alive, lost.rank());
    }
  return alive;
}

void require_sum(Transport& transport, std::chrono::milliseconds timeout = 20s) {
  constexpr std::size_t kCount = 500'000;
  std::vector<float> values(kCount, 1.0f);
  Operation operation = operation_of(transport);
  operation.timeout = timeout;
  transport.sum(operation, cut(values, even_counts(kCount, transport.ranks()))).wait_synchronize();
  const auto sum = static_cast<float>(transport.ranks());
  if (values != std::vector<float>(kCount, sum)) throw std::runtime_error("wrong sum");
}

/// The error ending the sums.
std::string sum_until_error(Transport& transport, std::chrono::milliseconds timeout) {
  try {
    for (;;) require_sum(transport, timeout);
  } catch (const TransportError& error) {
    return error.what();
  }
}

void require_survivors(const std::vector<int>& alive) {
  if (alive != std::vector{0, 1, 3}) throw std::runtime_error("others are lost");
}

/// The run of a rank. Throws after an unexpected result.
void go_on_without(int signal, const fs::path& meeting, int rank, int connections) {
  const bool is_silent = signal == SIGSTOP;
  const std::chrono::milliseconds timeout = is_silent ? 2s : 20s;
  const auto owned_transport = make_tcp_transport(
      meeting, rank, kRanks, {.address = "127.0.0.1", .connections = connections});
  Transport& transport = *owned_transport;
  const auto isolated_channel = transport.isolated_channel();
  if (rank == kVictim) require_sum(transport);
  if (rank == kVictim) std::raise(signal);
  const std::string error = sum_until_error(transport, timeout);
  if (!says(error, "rank 2")) throw std::runtime_error(error);
  const auto alive = find_alive(*isolated_channel, timeout);
  require_survivors(alive);
  const auto survivors = isolated_channel->split(alive);
  for (int step = 0; step < 10; ++step) require_sum(*survivors);
  require_sum(*survivors->channel());
  require_survivors(find_alive(*isolated_channel->channel(), timeout));
}

class TcpIsolatedChannels : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Signals, TcpIsolatedChannels, ::testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& signal) {
                           return std::string(signal.param == SIGKILL ? "killed" : "stopped");
                         });

TEST_P(TcpIsolatedChannels, ContinueWithoutLostProcess) {
  std::string name = (fs::temp_directory_path() / "tersor-tcp-XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  for (const int connections : {1, 3}) {
    std::vector<pid_t> processes;
    for (int rank = 0; rank < kRanks; ++rank)
      processes.push_back(fork_rank(rank, [&] {
        go_on_without(GetParam(), fs::path(name) / std::to_string(connections), rank, connections);
      }));
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == kVictim) continue;
      EXPECT_TRUE(ended_well(processes[static_cast<std::size_t>(rank)])) << "rank " << rank;
    }
    kill(processes[kVictim], SIGKILL);
    waitpid(processes[kVictim], nullptr, 0);
  }
  fs::remove_all(name);
}

}  // namespace
}  // namespace tersor::test
