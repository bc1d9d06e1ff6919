// The commands of tersor-bench. Each adds itself, with its options, to the program.
#pragma once

#include "bench/command_line.h"

namespace tersor::bench {

void add_codecs_command(Command& program);       ///< codecs against plain copies
void add_allreduce_command(Command& program);    ///< the collective and the reducer
void add_collectives_command(Command& program);  ///< the others
void add_allocate_command(Command& program);     ///< codecs by parameter, for a budget
void add_predict_command(Command& program);      ///< the cost model, for any ranks and links
void add_train_command(Command& program);        ///< accuracy against bytes and time
void add_report_command(Command& program);       ///< pictures from the others' records

}  // namespace tersor::bench
