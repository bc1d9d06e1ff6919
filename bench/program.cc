// Puts the commands together.

#include "bench/program.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "bench/commands.h"
#include "bench/processes/rank_place.h"

namespace tersor::bench {
namespace {

/// The rank that a launcher gave this process; empty for rank 0 and without a launcher. Later ranks
/// first wait a second: a launcher ends all processes as soon as rank 0 reports a common mistake.
std::string later_rank() {
  constexpr std::chrono::seconds kRankZeroFirst{1};
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", kRankVariable})
    if (const char* rank = std::getenv(name)) {
      if (std::string_view(rank) == "0") return "";
      std::this_thread::sleep_for(kRankZeroFirst);
      return rank;
    }
  return "";
}

void add_commands(Command& program) {
  add_codecs_command(program);
  add_allreduce_command(program);
  add_collectives_command(program);
  add_allocate_command(program);
  add_predict_command(program);
#if TERSOR_BENCH_TRAINING
  add_train_command(program);
#endif
  add_report_command(program);
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  return run_command_line("tersor-bench",
                          "Measures gradient codecs, compressed collectives, and training with "
                          "them.\ndocs/benchmarks.md explains every option and every figure.",
                          add_commands, later_rank, argc, argv);
}

}  // namespace tersor::bench
