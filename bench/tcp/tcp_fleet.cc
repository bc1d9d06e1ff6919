// Implements tcp_fleet.h.

#include "bench/tcp/tcp_fleet.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <tersor/error.h>
#include <tersor/tcp.h>

#include <array>
#include <charconv>
#include <string_view>

#include "bench/process_rank.h"
#include "bench/processes/rank_processes.h"

namespace tersor::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kDefaultProcesses = 4;

struct Names {
  const char* rank;
  const char* ranks;
};
constexpr std::array kLaunchers = {
    Names{kRankVariable, kRanksVariable}, Names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    Names{"PMI_RANK", "PMI_SIZE"}, Names{"SLURM_PROCID", "SLURM_NTASKS"}};

int number_of(const char* variable) {
  const char* value = std::getenv(variable);
  const std::string_view text = value == nullptr ? "" : value;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw InvalidArgument(fmt::format("{}=\"{}\" is no number", variable, text));
  return number;
}

/// A folder for one run's meeting; goes with it.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "tersor-tcp-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw Error(fmt::format("cannot make a folder {}", name));
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// The other ranks, where this process started them.
struct Others {
  explicit Others(int ranks)
      : processes({.words = own_command(),
                   .ranks = ranks,
                   .first = 1,
                   .variables = {{kTcpFileVariable, file().string()},
                                 {kRanksVariable, std::to_string(ranks)}}}) {}
  fs::path file() const { return folder.path() / "meeting"; }

  Folder folder;
  RankProcesses processes;
};

class TcpFleet final : public Fleet {
 public:
  TcpFleet(const TcpPlace& place, const FleetOptions& options, std::unique_ptr<Others> others)
      : others_(std::move(others)),
        transport_(place.file, place.rank, place.ranks,
                   {.address = options.address, .connections = options.connections}),
        link_(options.link) {}

  int ranks() const override { return transport_.ranks(); }
  std::string text() const override {
    return fmt::format("{} processes over TCP, link {}", ranks(), link_);
  }
  bool leads() const override { return transport_.rank() == 0; }
  std::optional<int> only_rank() const override { return transport_.rank(); }

  void run(const std::function<void(Rank&)>& body) override {
    ProcessRank rank(transport_);
    run_rank(transport_, rank, body);
  }

 private:
  std::unique_ptr<Others> others_;  // end last
  TcpTransport transport_;
  std::string link_;
};

}  // namespace

std::optional<TcpPlace> tcp_place_of_process() {
  const char* file = std::getenv(kTcpFileVariable);
  if (file == nullptr || *file == '\0') return std::nullopt;
  for (const Names& names : kLaunchers) {
    if (std::getenv(names.rank) == nullptr) continue;
    const TcpPlace place{number_of(names.rank), number_of(names.ranks), file};
    if (place.rank >= 0 && place.rank < place.ranks) return place;
    throw InvalidArgument(
        fmt::format("{}={} is no rank of {}={}", names.rank, place.rank, names.ranks, place.ranks));
  }
  throw InvalidArgument(
      fmt::format("{} is set, but neither {} nor a launcher's variable: which rank "
                  "is this process?",
                  kTcpFileVariable, kRankVariable));
}

std::unique_ptr<Fleet> make_tcp_fleet(const FleetOptions& options) {
  auto place = tcp_place_of_process();
  std::unique_ptr<Others> others;
  if (place && options.ranks.value_or(place->ranks) != place->ranks)
    throw InvalidArgument(
        fmt::format("--ranks {}, but there are {}", *options.ranks, place->ranks));
  if (!place) {
    others = std::make_unique<Others>(options.ranks.value_or(kDefaultProcesses));
    place = {0, options.ranks.value_or(kDefaultProcesses), others->file()};
  }
  FleetOptions own = options;
  if (others != nullptr && own.address.empty()) own.address = "127.0.0.1";
  auto fleet = std::make_unique<TcpFleet>(*place, own, std::move(others));
  silence_unless(fleet->leads());
  return fleet;
}

}  // namespace tersor::bench
