// Threads and processes as ranks, and the options that choose them.

#include "bench/ranks/fleet.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <chrono>
#include <cstdio>

#include "bench/common/arguments.h"

namespace tersor::bench {
namespace {

/// After an exception, the other ranks must not wait for this rank.
void run_rank(Transport& measured, Transport& control, const FleetParts& fleet,
              const std::function<void(Rank&)>& body) {
  Rank rank(measured, control, fleet);
  try {
    body(rank);
  } catch (const std::exception& error) {
    control.abort(error.what());
    throw;
  }
}

void run_threads(const FleetParts& fleet, const std::function<void(Rank&)>& body) {
  const Transports controls = make_inprocess_transports(fleet.ranks);
  std::vector<std::string> reasons(controls.size());
  try {
    run_ranks(fleet.threads(), [&](Transport& measured) {
      const auto index = static_cast<std::size_t>(measured.rank());
      try {
        run_rank(measured, *controls[index], fleet, body);
      } catch (const std::exception& error) {
        reasons[index] = error.what();
        throw;
      }
    });
  } catch (...) {
    for (std::size_t rank = 0; rank < reasons.size(); ++rank)
      if (!reasons[rank].empty()) fmt::print(stderr, "rank {}: {}\n", rank, reasons[rank]);
    throw;
  }
}

}  // namespace

// A rank may work alone for long, for example in a debugger.
Operation Rank::operation(std::string_view name) {
  return {.name = name, .tag = control_.reserve_tags(1), .timeout = std::chrono::hours(1)};
}

void Rank::barrier() {
  for (int round = 0; round < fleet_.barriers; ++round)
    control_.barrier(operation("meeting")).wait_synchronize();
}

std::vector<std::vector<std::byte>> Rank::gather_bytes(ConstByteSpan own) {
  Handle handle = control_.all_gather(operation("gathering"), own, own.size());
  handle.wait_synchronize();
  std::vector<std::vector<std::byte>> all;
  for (int rank = 0; rank < control_.ranks(); ++rank) {
    const ConstByteSpan bytes = rank == control_.rank() ? own : handle.received(rank);
    all.emplace_back(bytes.begin(), bytes.end());
  }
  return all;
}

Fleet::Fleet(FleetParts parts) : parts_(std::move(parts)) {
  if (parts_.transport == nullptr) return;
  if (parts_.transport->rank() != 0 && std::freopen("/dev/null", "w", stdout) == nullptr)
    throw Error("cannot silence this rank's output");
  measured_ = parts_.transport->channel();
}

void Fleet::run(const std::function<void(Rank&)>& body) {
  if (measured_ == nullptr) return run_threads(parts_, body);
  run_rank(*measured_, *parts_.transport, parts_, body);
}

std::unique_ptr<Fleet> make_thread_fleet(int ranks, const Link& link) {
  return std::make_unique<Fleet>(
      FleetParts{.threads = [=] { return make_inprocess_transports(ranks, link); },
                 .ranks = ranks,
                 .text = fmt::format("{} ranks in this process, link {}", ranks, link.text())});
}

std::vector<std::string> transport_names() {
  std::vector<std::string> names = {"inproc"};
#if TERSOR_HAS_MPI
  names.emplace_back("mpi");
#endif
#if TERSOR_HAS_TCP
  names.emplace_back("tcp");
#endif
  return names;
}

std::unique_ptr<Fleet> make_fleet(const FleetOptions& options) {
#if TERSOR_HAS_MPI
  if (options.transport == "mpi") return make_mpi_fleet(options);
#endif
#if TERSOR_HAS_TCP
  if (options.transport == "tcp") return make_tcp_fleet(options);
#endif
  if (options.transport != "inproc")
    throw InvalidArgumentError(fmt::format("no transport \"{}\"; there are: {}", options.transport,
                                           fmt::join(transport_names(), ", ")));
  return make_thread_fleet(options.ranks.value_or(kDefaultRanks), parse_link(options.link));
}

void add_fleet(CLI::App& command, FleetOptions& fleet, const std::vector<std::string>& transports) {
  add(command, "--transport", fleet.transport,
      fmt::format("{}: ranks are threads of this process, started by mpirun, "
                  "processes that talk over TCP, or have a GPU each",
                  fmt::join(transports, " or ")),
      "NAME", one_of(transports));
  command
      .add_option("--ranks", fleet.ranks,
                  "Threads, or processes to start, 4 unless given; mpirun has its own -n")
      ->transform(within(1, 1024))
      ->type_name("N");
#if TERSOR_HAS_TCP
  add(command, "--connections", fleet.connections, "tcp: connections of each pair of ranks", "N",
      within(1, 16));
  command
      .add_option("--address", fleet.address,
                  "tcp: where this rank listens: an address, a host's name or an interface")
      ->type_name("ADDRESS");
#endif
  add(command, "--link", fleet.link,
      "Link that each host has, emulated between threads: "
      "RATE[,LATENCY][,overhead=FACTOR][,per_host=RANKS], e.g. 1Gbit,50us, or "
      "none[,per_host=RANKS]; between processes only a name for the record",
      "LINK", checked(link_text));
}

}  // namespace tersor::bench
