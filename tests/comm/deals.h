// Rows sent between ranks, for the tests of all_to_all.
#pragma once

#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

namespace tersor::testing {

using Counts = std::vector<std::size_t>;

inline std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

/// The number of rows each rank sends to each other rank: rows[from][to].
using Deal = std::vector<Counts>;

inline Deal random_deal(int ranks, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  Deal deal(index(ranks), Counts(index(ranks)));
  for (Counts& counts : deal)
    for (std::size_t& rows : counts) rows = generator() % 3 == 0 ? 0 : generator() % 9;
  return deal;
}

inline Deal all_to_one(int ranks, int one) {
  Deal deal(index(ranks), Counts(index(ranks)));
  for (Counts& counts : deal) counts[index(one)] = 5;
  return deal;
}

inline Counts received(const Deal& deal, int rank) {
  Counts counts;
  for (const Counts& sent : deal) counts.push_back(sent[index(rank)]);
  return counts;
}

inline std::size_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// All rows sent by a rank. Equal ranks give equal rows.
inline Values rows_of(const Deal& deal, int rank, std::size_t columns) {
  Values values = gaussian(sum(deal[index(rank)]) * columns, 7 + index(rank));
  for (std::size_t i = 0; i < values.size(); ++i)  // rows of different magnitudes
    values[i] *= std::ldexp(1.0f, static_cast<int>(i / columns % 7) * 2 - 6);
  return values;
}

inline Values dealt(Transport& transport, const Deal& deal, std::size_t columns,
                    const CollectiveOptions& options) {
  const Counts from = received(deal, transport.rank());
  Values output(sum(from) * columns, -1.0f);
  all_to_all(transport, rows_of(deal, transport.rank(), columns), output, columns,
             {.sent = deal[index(transport.rank())], .received = from}, options);
  return output;
}

}  // namespace tersor::testing
