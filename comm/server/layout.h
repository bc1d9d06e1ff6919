// What a server has of the parameters, and how gradients and weights travel: the same for it and
// for all workers.
#pragma once

#include <tersor/server.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tersor {

inline constexpr std::size_t kMostUnanswered = 2;  ///< pushes of a worker; a server takes no more

/// One server's part. A segment for each parameter, of no values where other servers have them all.
struct ServerLayout {
  std::shared_ptr<const Codec> push, pull;
  std::vector<Segment> segments;
  Plan push_plan, pull_plan;
  std::uint64_t signature = 0;  ///< of all that both sides must have alike

  FrameIdentity identity(Checksum checksum) const { return {signature, checksum}; }
};

/// Throws InvalidArgument for options that no server takes.
ServerLayout server_layout(std::span<const std::size_t> counts, const ServerOptions& options,
                           int server, int servers);

}  // namespace tersor
