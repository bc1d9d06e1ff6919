// A row of `tersor-bench allreduce`, whatever the transport: what follows from its times, and what
// every record has.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "bench/allreduce_case.h"
#include "bench/fleet.h"
#include "bench/records.h"

namespace tersor::bench {

/// What was measured, and through what.
struct AllreduceRow {
  std::string codec;
  bool by_library = false;
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  int ranks = 1;
  std::string collective = {};  ///< empty where a transport knows but one
  std::vector<int> dims = {};
  BackwardPass pass = {};
  AllreduceResult result = {};

  double bytes() const { return static_cast<double>(count * dtype_bytes(dtype)); }
  double algbw() const { return bytes() / result.seconds / 1e9; }
  double busbw() const {
    return algbw() * (collective == "reduce_scatter" ? 1 : 2) * (ranks - 1) / ranks;
  }
  /// The share of the wire's time in which nobody waited.
  double hidden() const;
  /// "library": nobody says which way it went.
  std::string_view algorithm() const {
    return by_library ? "library" : algorithm_name(result.algorithm);
  }
};

/// The fields of all transports.
Record record_of(const AllreduceRow& row, std::string_view transport, std::string_view link);

}  // namespace tersor::bench
