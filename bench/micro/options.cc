
#include "bench/micro/options.h"

#include <tersor/isa.h>

#include "bench/common/arguments.h"

namespace tersor::bench {

void add_micro_options(Command& command, MicroOptions& options) {
  const auto isa = [](const std::string& name) { return std::string(isa_name(parse_isa(name))); };
  add_codecs(command, options.codecs);
  command
      .add_option("--count", options.counts, "Values; K, M and G are 1024s (64M, or all of FILE)")
      .transform(size_suffix(above_zero()))
      .type_name("N");
  command
      .add_option("--tensor", options.tensor_count, "Values of each of multi_tensor's 500 tensors")
      .takes("N", size_suffix(from_to(1, 1 << 20)));
  add_dtype(command, options.dtype);
  command
      .add_option("--isa", options.isa,
                  "Instruction set of the codecs: portable, avx2, avx512 or neon (the best one)")
      .transform(isa)
      .type_name("ISA");
  add_data(command, options.source);
  command.add_option("--threads", options.threads, "Threads of a codec (1, and one per core)")
      .transform(from_to(1, 1024))
      .type_name("N");
}

}  // namespace tersor::bench
