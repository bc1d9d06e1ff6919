// Fleets of threads, and the choice between threads and processes.

#include "bench/fleet.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <barrier>

#include "bench/process_fleet.h"

namespace tersor::bench {
namespace {

constexpr int kDefaultRanks = 4;

/// The meeting point of ranks. A throwing rank leaves the barrier, so other ranks do not wait. The
/// transport reports the error to other ranks.
struct Meeting {
  explicit Meeting(int ranks) : barrier(ranks), bytes(static_cast<std::size_t>(ranks)) {}

  std::barrier<> barrier;
  std::vector<std::vector<std::byte>> bytes;  // by rank
};

class ThreadRank final : public Rank {
 public:
  ThreadRank(Transport& transport, Meeting& meeting) : transport_(transport), meeting_(meeting) {}
  ~ThreadRank() override { meeting_.barrier.arrive_and_drop(); }
  ThreadRank(const ThreadRank&) = delete;
  ThreadRank& operator=(const ThreadRank&) = delete;

  Transport& transport() override { return transport_; }
  bool stores() override { return first(); }
  void meet() override { meeting_.barrier.arrive_and_wait(); }

  std::vector<std::vector<std::byte>> gather_bytes(ConstByteSpan own) override {
    meeting_.bytes[static_cast<std::size_t>(index())].assign(own.begin(), own.end());
    meet();
    auto all = meeting_.bytes;
    meet();
    return all;
  }

 private:
  Transport& transport_;
  Meeting& meeting_;
};

class ThreadFleet final : public Fleet {
 public:
  ThreadFleet(int ranks, const Link& link) : ranks_(ranks), link_(link) {}

  int ranks() const override { return ranks_; }
  std::string text() const override {
    return fmt::format("{} ranks in this process, link {}", ranks_, link_.text());
  }
  bool leads() const override { return true; }
  std::optional<int> only_rank() const override { return std::nullopt; }

  void run(const std::function<void(Rank&)>& body) override {
    Meeting meeting(ranks_);
    run_ranks(ranks_, link_, [&](Transport& transport) {
      ThreadRank rank(transport, meeting);
      body(rank);
    });
  }

 private:
  int ranks_;
  Link link_;
};

}  // namespace

std::unique_ptr<Fleet> make_thread_fleet(int ranks, const Link& link) {
  return std::make_unique<ThreadFleet>(ranks, link);
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

}  // namespace tersor::bench
