// Selects the parameters of each message. The decision depends only on the sending order and the
// options, so all ranks agree.
#pragma once

#include "comm/collectives/choose.h"
#include "comm/collectives/planner.h"

#include <tersor/collectives.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tersor {

/// Parameters sent together, and their chunks.
struct Bucket {
  std::vector<std::uint32_t> params;
  Algorithm algorithm = Algorithm::kTwoShot;
  std::vector<ChunkPlan> chunks;
};

struct BucketOptions {
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t bucket_bytes = 0;  ///< bytes of gradient
  std::size_t chunk_count = 0;   ///< values per chunk
};

/// Returns the algorithm of a parameter as if the parameter were large. The parameter's own count
/// has no influence. Residuals therefore do not depend on neighbours in the bucket. Throws
/// InvalidArgumentError if the requested algorithm does not fit the codec.
Algorithm preferred_algorithm(const ExchangeParameter& param, int ranks, Algorithm requested);

/// Groups the parameters in `order`.
std::vector<Bucket> make_buckets(const Planner& planner, std::span<const std::uint32_t> order,
                                 const BucketOptions& options);

}  // namespace tersor
