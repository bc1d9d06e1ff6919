// One rank of MPI_COMM_WORLD in each process.

#include "bench/mpi/process_fleet.h"

#include "bench/mpi/library_calls.h"
#include "bench/mpi/library_sum.h"
#include "bench/process_rank.h"

#include <fmt/format.h>
#include <mpi.h>
#include <tersor/error.h>
#include <tersor/mpi.h>

namespace tersor::bench {
namespace {

class MpiRank final : public ProcessRank {
 public:
  using ProcessRank::ProcessRank;

  void library_sum(ValueSpan values, StreamView) override { library_.add(values); }
  void library_call(std::string_view name, ConstValueSpan input, ValueSpan output) override {
    call_library(name, input, output);
  }

 private:
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
  bool has_library_calls() const override { return true; }

  void run(const std::function<void(Rank&)>& body) override {
    MpiRank rank(transport_);
    run_rank(transport_, rank, body);
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
  silence_unless(fleet->leads());
  return fleet;
}

}  // namespace tersor::bench
