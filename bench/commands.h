// The commands of tersor-bench. Each function adds a command with its options.
#pragma once

namespace CLI {
class App;
}

namespace tersor::bench {

void add_codecs_command(CLI::App& program);       ///< codecs compared with plain copies
void add_allreduce_command(CLI::App& program);    ///< allreduce and the reducer
void add_collectives_command(CLI::App& program);  ///< the other collectives
void add_allocate_command(CLI::App& program);     ///< codecs per parameter for a budget of bits
void add_predict_command(CLI::App& program);      ///< the cost model for any ranks and links
void add_train_command(CLI::App& program);        ///< accuracy by bytes and time
void add_report_command(CLI::App& program);       ///< figures from records

/// Runs tersor-bench. Returns the exit code of `run_command`.
int run_program(int argc, const char* const* argv);

}  // namespace tersor::bench
