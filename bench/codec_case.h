// One measurement of `tersor-bench codecs`: an operation, and its baseline, timed in turns.
#pragma once

#include <tersor/dtype.h>
#include <tersor/isa.h>
#include <tersor/threads.h>
#include <tersor/wire.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "bench/codec_operations.h"
#include "bench/samples.h"

namespace tersor::bench {

/// What is measured.
struct CodecCase {
  std::string codec;  ///< without "+ef"
  std::string operation;
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;
  Isa isa = Isa::kPortable;
  unsigned threads = 1;
  Checksum checksum = Checksum::kOn;

  bool operator==(const CodecCase&) const = default;
};

/// What was found out before the clock ran.
struct CheckedOperation {
  std::string baseline;
  std::size_t payload_bytes = 0;
  std::size_t workspace_bytes = 0;
  double relative_error = 0;
};

/// Holds what consecutive cases share, and makes what a case needs when it begins.
class CodecCaseRunner {
 public:
  explicit CodecCaseRunner(const SampleSource& source) : source_(source) {}

  /// Makes the case, checks its result, and warms up; does nothing where it is the last one again.
  /// Throws what the codec throws, and Error where a result is wrong.
  const CheckedOperation& prepare(const CodecCase& wanted);

  /// Seconds a call, each over as many calls as take about a millisecond.
  double time_operation();
  double time_baseline();

 private:
  void make_gradient(const CodecCase& wanted);
  void warm_up();

  const SampleSource& source_;
  std::optional<CodecCase> current_;
  Buffer gradient_storage_;
  ConstValueSpan gradient_;
  std::unique_ptr<Threads> threads_;
  std::unique_ptr<CodecOperation> operation_;
  CheckedOperation checked_;
  std::size_t operation_calls_ = 1, baseline_calls_ = 1;
};

}  // namespace tersor::bench
