// Registers the benchmarks of codecs and of memory loops with Google Benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/micro/codec_operation.h"

namespace tersor::bench {

struct MicroOptions {
  std::vector<std::string> codecs;                  ///< empty: all codecs of the registry
  std::vector<std::size_t> counts;                  ///< empty: kDefaultCount, or all of a file
  std::size_t tensor_count = std::size_t{1} << 16;  ///< values per tensor of multi_tensor
  std::string dtype = "f32";
  std::string isa;
  std::string source = "normal";
  std::vector<unsigned> threads;  ///< empty: 1 and all cores
};

/// A registered benchmark. Its name has all fields:
/// cpu/encode/int8/f32/67108864/threads:2/checksum:off.
struct CodecCase {
  Machine* machine = nullptr;
  const OperationKind* operation = nullptr;  ///< null for a memory loop
  std::string codec;                         ///< or the name of a memory loop
  std::size_t count = 0;
  unsigned threads = 1;
  Checksum checksum = Checksum::kOff;

  std::string name(Dtype dtype) const;
  bool operator==(const CodecCase&) const = default;
};

/// The benchmarks of all codecs on one or two machines. The object must outlive their runs.
class CodecBenchmarks {
 public:
  explicit CodecBenchmarks(const MicroOptions& options);

  /// Registers every operation of every codec, and every memory loop.
  void register_on(Machine& machine);
  /// True if a benchmark gave a wrong result or threw.
  bool failed() const { return failed_; }

 private:
  /// A checked case, ready for timing.
  struct Prepared {
    CodecCase config;
    std::unique_ptr<CodecOperation> operation;  ///< null for a memory loop
    double relative_error = 0;
    std::size_t moved_bytes = 0;  ///< per call
    TimedCall timed;
    std::vector<TimedCall> references;
    std::size_t batch = 1;                     ///< calls of `timed` per sample
    std::vector<std::size_t> reference_calls;  ///< calls per sample
  };

  void register_codec(Machine& machine, const std::string& spec, std::size_t count);
  void register_case(const CodecCase& config);
  void register_threads(CodecCase config);
  /// Times the case. An exception ends the benchmark and, later, the program with an error.
  void run(benchmark::State& state, const CodecCase& config);
  void time(benchmark::State& state, Prepared& prepared);
  /// Keeps only the last case, because a case may need gigabytes.
  Prepared& prepare(const CodecCase& config);
  void prepare_operation(Prepared& prepared);
  void prepare_loop(Prepared& prepared);
  Threads& threads_of(unsigned count);
  ConstValueSpan gradient_of(std::size_t count);

  MicroOptions options_;
  std::shared_ptr<const SampleSource> source_;
  Dtype dtype_;
  std::shared_ptr<const Buffer> gradient_;
  std::unique_ptr<Threads> threads_;
  std::optional<Prepared> prepared_;
  bool failed_ = false;
};

}  // namespace tersor::bench
