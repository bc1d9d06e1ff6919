// The rounds of a codec that only goes native, among ranks that are harnesses of one plan: what a
// transport's native maximum and sum would do stands between them.
#pragma once

#include "tests/support/codec_harness.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::test {

/// Bare values as numbers; those of the test device can be reached from the host.
template <typename T>
std::span<const T> numbers(const ConstValueSpan& values) {
  return {reinterpret_cast<const T*>(values.pointer()), values.count()};
}

/// into = into combined with `from`, as a transport would: sums modulo the type's range.
void combine(Exchange exchange, ValueSpan into, ConstValueSpan from);

/// Factors of one exchange, and where bare values lie.
struct NativeOptions {
  float encode_factor = 1.0f;
  float decode_factor = 1.0f;
  DecodeMode mode = DecodeMode::kAssign;
  std::size_t shift = 0;  ///< values between a 64-byte boundary and the bare ones
};

class NativeRounds {
 public:
  /// `options.contributions` is how many ranks there are.
  NativeRounds(std::string_view spec, const std::vector<std::size_t>& counts,
               HarnessOptions options = {});

  /// All rounds of all ranks.
  void exchange(const NativeOptions& options = {});

  std::vector<CodecHarness> ranks;
  /// By rounds: what each rank wrote, and what came back to all.
  std::vector<std::vector<GuardedValues>> bare;
  std::vector<GuardedValues> combined;

  bool intact() const;

 private:
  void run_round(std::size_t round, const Round& plan, const NativeOptions& options);
  void take_back(std::size_t round, bool is_last, const NativeOptions& options);

  Memory memory_;
};

/// Everything that two exchanges of the same values wrote: bare values, residuals, outputs and the
/// codec's memory.
void expect_same_rounds(const NativeRounds& a, const NativeRounds& b);

}  // namespace tersor::test
