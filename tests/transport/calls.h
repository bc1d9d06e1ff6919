// Operations by number, and checks of the errors.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tests/transport/ranks.h"

namespace tersor::test {

/// Expects an error with all texts of `parts` on every rank.
inline void expect_all_fail(const std::vector<std::string>& errors,
                            const std::vector<std::string>& parts) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank)
    for (const std::string& part : parts) EXPECT_TRUE(says(errors[rank], part));
}

inline void exchange_all(Transport& transport, const Operation& operation, ConstByteSpan bytes) {
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  for (const int peer : peers_of(transport)) {
    sends.push_back({peer, bytes});
    receives.push_back({peer, bytes.size()});
  }
  transport.exchange(operation, sends, receives).wait_synchronize();
}

inline constexpr int kCalls = 7;
/// Calls operation number `which` on `count` f32 values.
inline void call(Transport& transport, int which, const Operation& operation, std::size_t count) {
  std::vector<float> values(count, 1.0f);
  const auto parts = cut(values, even_counts(count, transport.ranks()));
  const ConstByteSpan bytes = std::as_bytes(std::span(values));
  const auto ranks = static_cast<std::size_t>(transport.ranks());
  const std::vector<ConstByteSpan> sends(ranks, bytes);
  const std::vector<std::size_t> capacities(ranks, bytes.size());
  switch (which) {
    case 0:
      return transport.all_gather(operation, bytes, bytes.size()).wait_synchronize();
    case 1:
      return transport.all_to_all(operation, sends, capacities).wait_synchronize();
    case 2:
      return transport.sum(operation, parts).wait_synchronize();
    case 3:
      return transport.maximum(operation, parts).wait_synchronize();
    case 4:
      return exchange_all(transport, operation, bytes);
    case 5: {
      Operation open = operation;  // the order of additions is
      open.whole_bytes = 4 * count;
      return transport.sum(open, parts).wait_synchronize();
    }
    default:
      return transport.barrier(operation).wait_synchronize();
  }
}

}  // namespace tersor::test
