// The commands of tersor-bench. Each function adds a command with its options.
#pragma once

#include "bench/common/command_line.h"

namespace tersor::bench {

void add_codecs_command(Command& program);       ///< codecs compared with plain copies
void add_allreduce_command(Command& program);    ///< allreduce and the reducer
void add_collectives_command(Command& program);  ///< the other collectives
void add_allocate_command(Command& program);     ///< codecs per parameter for a budget of bits
void add_predict_command(Command& program);      ///< the cost model for any ranks and links
void add_train_command(Command& program);        ///< accuracy by bytes and time
void add_report_command(Command& program);       ///< figures from records

/// Runs tersor-bench. Returns the exit code of `run_command`.
int run_program(int argc, const char* const* argv);

}  // namespace tersor::bench
