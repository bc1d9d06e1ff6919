// The program tersor-bench.

#include "bench/commands.h"

#include "bench/common/command_line.h"

namespace tersor::bench {

int run_program(int argc, const char* const* argv) {
  CLI::App program(
      "Measures compressed collectives, training with them, and the errors of codecs.\n"
      "docs/how-to/benchmark.md is a guide, bench/records.md explains every record.",
      "tersor-bench");
  program.require_subcommand(1);
  add_codecs_command(program);
  add_allreduce_command(program);
  add_collectives_command(program);
  add_allocate_command(program);
  add_predict_command(program);
#if TERSOR_BENCH_TRAINING
  add_train_command(program);
#endif
  add_report_command(program);
  return run_command(program, argc, argv);
}

}  // namespace tersor::bench
