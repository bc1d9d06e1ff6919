// The command line of tersor-bench: its commands, and what becomes of errors.
#pragma once

namespace tersor::bench {

/// Runs the command that the arguments name. Returns the exit code: 0, 1 where a run failed, 2
/// where the arguments are wrong (the message lists the right ones).
int run_program(int argc, const char* const* argv);

}  // namespace tersor::bench
