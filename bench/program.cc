// Puts the commands together.

#include "bench/program.h"

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "bench/commands.h"
#include "bench/processes/rank_place.h"

namespace tersor::bench {
namespace {

/// False for the processes of a launcher but the first, which speaks for all of wrong usage. Those
/// wait a little before they end: launchers end all as soon as one does.
bool speaks() {
  constexpr std::chrono::seconds kToSpeak{1};
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", kRankVariable})
    if (const char* rank = std::getenv(name)) {
      if (std::string_view(rank) == "0") return true;
      std::this_thread::sleep_for(kToSpeak);
      return false;
    }
  return true;
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
                          add_commands, speaks, argc, argv);
}

}  // namespace tersor::bench
