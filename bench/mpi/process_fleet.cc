// One rank of MPI_COMM_WORLD in each process.

#include "bench/mpi/process_fleet.h"

#include "bench/mpi/library_sum.h"

#include <fmt/format.h>
#include <mpi.h>
#include <tersor/error.h>
#include <tersor/mpi.h>

#include <cstdio>

namespace tersor::bench {
namespace {

class ProcessRank final : public Rank {
 public:
  explicit ProcessRank(Transport& transport)
      : transport_(transport.channel()), control_(transport.channel()) {}

  Transport& transport() override { return *transport_; }
  bool stores() override { return true; }

  // A barrier ends for the last rank first; the second one brings them closer together.
  void meet() override {
    for (int round = 0; round < 2; ++round)
      control_->barrier({.name = "meeting", .tag = control_->reserve_tags(1)}).wait_synchronize();
  }

  std::vector<std::vector<std::byte>> gather_bytes(ConstByteSpan own) override {
    Handle handle = control_->all_gather({.name = "gathering", .tag = control_->reserve_tags(1)},
                                         own, own.size());
    handle.wait_synchronize();
    std::vector<std::vector<std::byte>> all;
    for (int rank = 0; rank < control_->ranks(); ++rank) {
      const ConstByteSpan bytes = rank == control_->rank() ? own : handle.received(rank);
      all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
  }

  void library_sum(ValueSpan values, StreamView) override { library_.add(values); }

 private:
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Transport> control_;
  LibrarySum library_;
};

class ProcessFleet final : public Fleet {
 public:
  explicit ProcessFleet(std::string link) : transport_(MPI_COMM_WORLD), link_(std::move(link)) {}

  int ranks() const override { return transport_.ranks(); }
  std::string text() const override {
    return fmt::format("{} processes over MPI, link {}", ranks(), link_);
  }
  bool leads() const override { return transport_.rank() == 0; }
  std::optional<int> only_rank() const override { return transport_.rank(); }
  std::optional<std::string> library() const override { return "MPI_Allreduce"; }

  void run(const std::function<void(Rank&)>& body) override {
    ProcessRank rank(transport_);
    try {
      body(rank);
    } catch (const TransportError&) {
      throw;
    } catch (const std::exception& error) {
      transport_.poison(error.what());  // the others would wait for us
      throw;
    }
  }

 private:
  MpiSession session_;
  MpiTransport transport_;
  std::string link_;
};

}  // namespace

std::unique_ptr<Fleet> make_process_fleet(const FleetOptions& options) {
  LibrarySum::prepare();
  auto fleet = std::make_unique<ProcessFleet>(options.link);
  if (options.ranks.has_value() && *options.ranks != fleet->ranks())
    throw InvalidArgument(fmt::format(
        "--ranks {}, but mpirun started {}: over MPI leave out --ranks and say mpirun -n {}",
        *options.ranks, fleet->ranks(), *options.ranks));
  if (!fleet->leads() && std::freopen("/dev/null", "w", stdout) == nullptr)
    throw Error("cannot silence this rank's output");
  return fleet;
}

}  // namespace tersor::bench
