// Fleets over TCP. A launcher passes the rank to each process. Without a launcher, this program
// starts the processes.

#include <fmt/format.h>
#include <tersor/error.h>
#include <tersor/tcp.h>

#include <future>

#include "bench/processes/rank_processes.h"
#include "bench/ranks/fleet.h"

namespace tersor::bench {
namespace {

/// The rendezvous file, reachable for all ranks and new for each run.
constexpr const char* kTcpFileVariable = "TERSOR_TCP_FILE";

/// Starts the ranks. When this process ends, the ranks have time to print why they failed.
std::shared_ptr<RankProcesses> start_others(int ranks) {
  constexpr std::chrono::seconds kShutdownTimeout{5};
  const auto end = [](RankProcesses* processes) {
    processes->wait({.all = kShutdownTimeout});
    delete processes;
  };
  return {
      new RankProcesses(
          {.argv = own_command(), .ranks = ranks, .first = 1, .file_variable = kTcpFileVariable}),
      end};
}

/// Each rank waits for the other ranks, so each rank has a thread.
Transports make_loopback_transports(int ranks) {
  const TemporaryFolder folder;
  const auto make = [&](int rank) {
    return make_tcp_transport(folder.path() / "meeting", rank, ranks, {.address = "127.0.0.1"});
  };
  std::vector<std::future<std::unique_ptr<Transport>>> pending;
  for (int rank = 0; rank < ranks; ++rank)
    pending.push_back(std::async(std::launch::async, make, rank));
  Transports transports;
  for (auto& transport : pending) transports.push_back(transport.get());
  return transports;
}

}  // namespace

std::unique_ptr<Fleet> make_tcp_fleet(const FleetOptions& options) {
  auto identity = identity_of_process(kTcpFileVariable);
  if (identity && options.ranks.value_or(identity->ranks) != identity->ranks)
    throw InvalidArgumentError(
        fmt::format("--ranks {}, but there are {}", *options.ranks, identity->ranks));
  std::string address = options.address;
  std::shared_ptr<RankProcesses> others;
  if (!identity) {
    const int ranks = options.ranks.value_or(kDefaultRanks);
    others = start_others(ranks);
    identity = {0, ranks, others->file()};
    if (address.empty()) address = "127.0.0.1";
  }
  auto transport =
      make_tcp_transport(identity->file, identity->rank, identity->ranks,
                         TcpOptions{.address = address, .connections = options.connections});
  return std::make_unique<Fleet>(FleetParts{
      .owner = std::move(others),
      .transport = std::move(transport),
      .text = fmt::format("{} processes over TCP, link {}", identity->ranks, options.link)});
}

std::unique_ptr<Fleet> make_loopback_fleet(int ranks) {
  return std::make_unique<Fleet>(
      FleetParts{.threads = [=] { return make_loopback_transports(ranks); },
                 .ranks = ranks,
                 .text = fmt::format("{} ranks in this process, over TCP", ranks)});
}

}  // namespace tersor::bench
