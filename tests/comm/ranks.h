// Ranks as threads and gradients equal on every machine: shared by the tests of comm/.
#pragma once

#include <tersor/tersor.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/errors.h"

namespace tersor::testing {

using test::error_of;
using test::expect_error;
using test::says;

using Values = std::vector<float>;
using Hosts = std::vector<int>;  ///< of each rank

inline int ranks_of(const Hosts& hosts) { return static_cast<int>(hosts.size()); }

/// Standard normal values. Equal arguments give equal values.
inline Values gaussian(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 generator(seed * 7919 + 17);
  Values values(count);
  for (std::size_t i = 0; i < count; i += 2) {
    const double u = (static_cast<double>(generator() >> 11) + 0.5) * 0x1p-53;
    const double v = (static_cast<double>(generator() >> 11) + 0.5) * 0x1p-53;
    const double radius = std::sqrt(-2.0 * std::log(u));
    values[i] = static_cast<float>(radius * std::cos(6.283185307179586 * v));
    if (i + 1 < count) values[i + 1] = static_cast<float>(radius * std::sin(6.283185307179586 * v));
  }
  return values;
}

/// A gradient per rank.
inline std::vector<Values> gradients(int ranks, std::size_t count, std::uint64_t seed = 1) {
  std::vector<Values> all;
  for (int rank = 0; rank < ranks; ++rank)
    all.push_back(gaussian(count, seed * 1000 + static_cast<std::uint64_t>(rank)));
  return all;
}

inline std::vector<double> exact_sum(const std::vector<Values>& all) {
  std::vector<double> sum(all.front().size(), 0.0);
  for (const Values& one : all)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
  return sum;
}

/// |found − wanted|² / |wanted|².
inline double squared_error(const Values& found, const std::vector<double>& wanted) {
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    error += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    energy += wanted[i] * wanted[i];
  }
  return energy == 0 ? error : error / energy;
}

/// Runs `body(transport, gradient)` on each rank with a copy of its gradient. Returns the copies.
inline std::vector<Values> on_ranks(const std::vector<Values>& inputs,
                                    const std::function<void(Transport&, Values&)>& body) {
  std::vector<Values> outputs = inputs;
  run_ranks(static_cast<int>(inputs.size()), {}, [&](Transport& transport) {
    body(transport, outputs[static_cast<std::size_t>(transport.rank())]);
  });
  return outputs;
}

/// The text of each rank's `Error`, or "".
template <typename Error = TransportError>
std::vector<std::string> errors_of(int ranks, const std::function<void(Transport&)>& call) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_ranks(ranks, {}, [&](Transport& transport) {
    errors[static_cast<std::size_t>(transport.rank())] = error_of<Error>([&] { call(transport); });
  });
  return errors;
}

/// Expects a TransportError on all ranks.
inline void expect_all_fail(int ranks, const std::function<void(Transport&)>& call) {
  for (const std::string& error : errors_of(ranks, call)) EXPECT_NE(error, "");
}

/// The text of rank 1's InvalidArgumentError. The values and the transport stay as they were.
inline std::string refused(const std::function<void(Transport&, Values&)>& call) {
  std::string said;
  run_ranks(2, {}, [&](Transport& transport) {
    Values values(1000, 1.0f);
    const std::string own = error_of<InvalidArgumentError>([&] { call(transport, values); });
    EXPECT_NE(own, "") << "nothing was thrown";
    if (transport.rank() == 1) said = own;
    broadcast(transport, values);
    EXPECT_EQ(values, Values(1000, 1.0f));
  });
  return said;
}

}  // namespace tersor::testing
