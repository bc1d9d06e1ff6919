// The options of `tersor-bench codecs`.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/command_line.h"

namespace tersor::bench {

/// Values of a gradient where neither --count nor a file says how many.
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
  bool all_codecs = false;  ///< instead of `codecs`
  std::string device = "cpu";
  std::vector<std::string> operations;
  std::vector<std::size_t> counts;
  std::size_t tensor_count = std::size_t{1} << 16;  ///< values of each of multi-tensor's
  std::string dtype = "f32";
  std::vector<std::string> isas;
  unsigned threads = 0;
  std::string source = "normal";
  std::string checksum = "on";
  bool feedback = false;
  int repetitions = 11;
  std::filesystem::path json;
};

/// All of them but --json.
void add_codecs_options(Command& command, CodecsOptions& options);

/// Each codec of the registry, at its defaults and with every other value of each option; of
/// numbers a tenth, a hundredth and a thousandth of the largest.
std::vector<std::string> all_specs();

/// Whether an operation that a codec has is measured.
bool is_wanted(const CodecsOptions& options, const std::string& spec, const std::string& operation);
/// As records and tables show it: with "+ef" where the operation keeps a residual.
std::string shown_codec(const std::string& codec, const std::string& operation);

}  // namespace tersor::bench
