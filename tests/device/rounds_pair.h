// An exchange in native rounds on the host and on the device under test, compared bitwise.
#pragma once

#include "tests/support/native_rounds.h"

#include <functional>
#include <string>
#include <vector>

namespace tersor::test {

struct RoundsPair {
  /// A pair with two ranks.
  RoundsPair(const std::string& spec, const std::vector<std::size_t>& counts,
             const HarnessOptions& options);

  void for_each(const std::function<void(CodecHarness&)>& body);

  /// Compares the raw values of all rounds, round state, residuals, the codec's memory and decoded
  /// values.
  void expect_same(const NativeOptions& options = {});

  NativeRounds host, device;
};

/// Runs `body` on a pair for each type of gradient and residual.
void for_each_type(const std::string& spec, const std::vector<std::size_t>& counts,
                   HarnessOptions options, const std::function<void(RoundsPair&)>& body);

/// Compares the state words written by round 1 for the next step, in place and to separate memory.
void expect_same_next_words(const std::string& spec, std::size_t count,
                            const HarnessOptions& options);

}  // namespace tersor::test
