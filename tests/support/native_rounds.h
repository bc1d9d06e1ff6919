// The rounds of a native-only codec among ranks. Each rank is a harness of the same plan. The class
// performs the transport's native maxima and sums.
#pragma once

#include "tests/support/codec_harness.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::test {

/// Raw values as numbers. Values of the test device are accessible from the host.
template <typename T>
std::span<const T> numbers(const ConstValueSpan& values) {
  return {reinterpret_cast<const T*>(values.pointer()), values.count()};
}

/// Combines `from` into `into` as a transport does; integer sums wrap modulo the type's range.
void combine(Exchange exchange, ValueSpan into, ConstValueSpan from);

/// Factors of an exchange and the alignment of the raw values.
struct NativeOptions {
  float encode_factor = 1.0f;
  float decode_factor = 1.0f;
  DecodeMode mode = DecodeMode::kAssign;
  std::size_t shift = 0;  ///< distance of the raw values from a 64-byte boundary, in values
};

class NativeRounds {
 public:
  /// `options.contributions` is the number of ranks.
  NativeRounds(std::string_view spec, const std::vector<std::size_t>& counts,
               HarnessOptions options = {});

  /// Runs all rounds of all ranks.
  void exchange(const NativeOptions& options = {});

  std::vector<CodecHarness> ranks;
  /// Per round: the values written by each rank, and the combined values.
  std::vector<std::vector<GuardedValues>> raw;
  std::vector<GuardedValues> combined;

  bool intact() const;

 private:
  void run_round(std::size_t round, const Round& plan, const NativeOptions& options);
  void take_back(std::size_t round, bool is_last, const NativeOptions& options);

  Memory memory_;
};

/// Expects two exchanges of the same values to write the same raw values, residuals, outputs and
/// codec memory.
void expect_same_rounds(const NativeRounds& a, const NativeRounds& b);

}  // namespace tersor::test
