// tersor-bench: measures codecs, collectives and training, and draws the report.

#include "bench/commands.h"

int main(int argc, char** argv) { return tersor::bench::run_program(argc, argv); }
