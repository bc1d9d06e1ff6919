// The same exchange in native rounds on the host and on the device under test, compared bit by bit.
#pragma once

#include "tests/support/native_rounds.h"

#include <functional>
#include <string>
#include <vector>

namespace tersor::test {

struct RoundsPair {
  /// Of two ranks.
  RoundsPair(const std::string& spec, const std::vector<std::size_t>& counts,
             const HarnessOptions& options);

  void for_each(const std::function<void(CodecHarness&)>& body);

  /// Bare values of all rounds, kept memory, residuals, the codec's memory and decoded values.
  void expect_same(const NativeOptions& options = {});

  NativeRounds host, device;
};

/// Runs `body` on a pair for each type of gradient and residual.
void for_each_type(const std::string& spec, const std::vector<std::size_t>& counts,
                   HarnessOptions options, const std::function<void(RoundsPair&)>& body);

/// What round 1 writes for the next step, in place and elsewhere.
void expect_same_next_words(const std::string& spec, std::size_t count,
                            const HarnessOptions& options);

}  // namespace tersor::test
