// Which parameters share a message. Decided from the order of sending and the options alone, so
// that all ranks decide alike.
#pragma once

#include "comm/collectives/choose.h"
#include "comm/collectives/planner.h"

#include <tersor/collectives.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tersor {

/// Parameters that travel together, and their chunks.
struct Bucket {
  std::vector<std::uint32_t> slots;
  Algorithm algorithm = Algorithm::kTwoShot;
  std::vector<ChunkPlan> chunks;
};

struct BucketOptions {
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t bucket_bytes = 0;  ///< of gradient
  std::size_t chunk_count = 0;   ///< values
};

/// The way that a parameter would go in a bucket of its own size: never by its own count, so that
/// its residuals do not depend on its neighbours. Throws InvalidArgument where the algorithm that
/// is asked for does not fit its codec.
Algorithm preferred_algorithm(const Slot& slot, int ranks, Algorithm wanted);

/// Groups the slots in `order`.
std::vector<Bucket> make_buckets(const Planner& planner, std::span<const std::uint32_t> order,
                                 const BucketOptions& options);

}  // namespace tersor
