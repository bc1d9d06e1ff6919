// The options of `tersor-bench codecs`.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/command_line.h"

namespace tersor::bench {

/// Default number of gradient values, without --count and without a file.
inline constexpr std::size_t kDefaultCount = std::size_t{1} << 26;

struct CodecsOptions {
  std::vector<std::string> codecs = {"none",
                                     "bf16",
                                     "f16",
                                     "int8",
                                     "int4",
                                     "int8:rounding=stochastic",
                                     "int4:rounding=stochastic",
                                     "topk:density=0.01",
                                     "topk:density=0.001"};
  bool all_codecs = false;  ///< True to replace `codecs` by all codecs
  std::string device = "cpu";
  std::vector<std::string> operations;
  std::vector<std::size_t> counts;
  std::size_t tensor_count = std::size_t{1} << 16;  ///< values per tensor of multi-tensor
  std::string dtype = "f32";
  std::vector<std::string> isas;
  unsigned threads = 0;
  std::string source = "normal";
  std::string checksum = "on";
  bool feedback = false;
  int repetitions = 11;
  std::filesystem::path json;
};

/// Adds all options except --json.
void add_codecs_options(Command& command, CodecsOptions& options);

/// All codecs of the registry: the defaults, and every value of each option. A numeric option takes
/// a tenth, a hundredth and a thousandth of the maximum.
std::vector<std::string> all_specs();

/// True if the codec's operation is measured.
bool is_wanted(const CodecsOptions& options, const std::string& spec, const std::string& operation);
/// The name in records and tables: with "+ef" for operations with a residual.
std::string shown_codec(const std::string& codec, const std::string& operation);

}  // namespace tersor::bench
