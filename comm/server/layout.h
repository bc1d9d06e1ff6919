// A server's part of the parameters, and the codecs of gradients and weights. Equal on the server
// and on all workers.
#pragma once

#include <tersor/agreement.h>
#include <tersor/server.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tersor {

inline constexpr std::size_t kMaxPendingPushes = 2;  ///< per worker; a server accepts no more

/// One server's part, with a segment per parameter. A segment is empty if other servers own the
/// whole parameter.
struct ServerLayout {
  std::shared_ptr<const Codec> push, pull;
  std::vector<Segment> segments;
  Plan push_plan, pull_plan;
  Agreement agreement = {};  ///< the options that the server and the workers must pass equally

  std::uint64_t signature() const { return agreement.signature(); }
  FrameIdentity identity(Checksum checksum) const { return {signature(), checksum}; }
};

/// Throws InvalidArgumentError for unsupported options.
ServerLayout server_layout(std::span<const std::size_t> counts, const ServerOptions& options,
                           int server, int servers);

}  // namespace tersor
