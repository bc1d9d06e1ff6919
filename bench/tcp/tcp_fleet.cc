// A fleet over TCP with one rank per process. Either this program starts the processes, or a
// launcher passes the rank to each process.

#include <fmt/format.h>
#include <tersor/error.h>
#include <tersor/tcp.h>

#include <array>
#include <cstdlib>
#include <optional>

#include "bench/process_fleet.h"
#include "bench/processes/rank_processes.h"

namespace tersor::bench {
namespace {

constexpr int kDefaultProcesses = 4;

/// The rendezvous file, reachable for all ranks and new for each run.
constexpr const char* kTcpFileVariable = "TERSOR_TCP_FILE";

struct Names {
  const char* rank;
  const char* ranks;
};
constexpr std::array kLaunchers = {
    Names{kRankVariable, kRanksVariable}, Names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    Names{"PMI_RANK", "PMI_SIZE"}, Names{"SLURM_PROCID", "SLURM_NTASKS"}};

/// Reads this process's rank from TERSOR_RANK and TERSOR_RANKS, or from a launcher's variables.
/// Returns nullopt if TERSOR_TCP_FILE is not set.
std::optional<RankIdentity> tcp_identity_of_process() {
  const char* file = std::getenv(kTcpFileVariable);
  if (file == nullptr || *file == '\0') return std::nullopt;
  for (const Names& names : kLaunchers)
    if (std::getenv(names.rank) != nullptr) return identity_by(names.rank, names.ranks, file);
  throw InvalidArgumentError(
      fmt::format("{} is set, but neither {} nor a launcher's variable: which rank "
                  "is this process?",
                  kTcpFileVariable, kRankVariable));
}

}  // namespace

std::unique_ptr<Fleet> make_tcp_fleet(const FleetOptions& options) {
  auto identity = tcp_identity_of_process();
  if (identity && options.ranks.value_or(identity->ranks) != identity->ranks)
    throw InvalidArgumentError(
        fmt::format("--ranks {}, but there are {}", *options.ranks, identity->ranks));
  std::string address = options.address;
  std::shared_ptr<RankProcesses> others;
  if (!identity) {
    const int ranks = options.ranks.value_or(kDefaultProcesses);
    others = std::make_shared<RankProcesses>(RankCommand{
        .words = own_command(), .ranks = ranks, .first = 1, .file_variable = kTcpFileVariable});
    identity = {0, ranks, others->file()};
    if (address.empty()) address = "127.0.0.1";
  }
  auto transport =
      make_tcp_transport(identity->file, identity->rank, identity->ranks,
                         TcpOptions{.address = address, .connections = options.connections});
  return make_process_fleet(
      {.keeper = std::move(others),
       .transport = std::move(transport),
       .text = fmt::format("{} processes over TCP, link {}", identity->ranks, options.link)});
}

}  // namespace tersor::bench
