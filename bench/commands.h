// The commands of tersor-bench. Each adds itself, with its options, to the program.
#pragma once

#include <CLI/CLI.hpp>

namespace tersor::bench {

void add_codecs_command(CLI::App& program);       ///< codecs against plain copies
void add_allreduce_command(CLI::App& program);    ///< the collective and the reducer
void add_collectives_command(CLI::App& program);  ///< the others
void add_allocate_command(CLI::App& program);     ///< codecs by parameter, for a budget
void add_predict_command(CLI::App& program);      ///< the cost model, for any ranks and links
void add_train_command(CLI::App& program);        ///< accuracy against bytes and time
void add_report_command(CLI::App& program);       ///< pictures from the others' records

}  // namespace tersor::bench
