// Fabrics of ranks over TCP on threads of a single process, with a single connection and with
// several connections.
#include "tests/tcp/meeting.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

Fabric tcp_fabric(const std::string& name, const TcpOptions& options) {
  const auto run = [options](int ranks, const Body& body) {
    run_ranks(tcp_transports(ranks, options), body);
  };
  return {.name = name, .run = run, .head_bytes = 64};
}

}  // namespace

std::vector<Fabric> fabrics() {
  return {tcp_fabric("Tcp", {}), tcp_fabric("TcpLanes", {.connections = 3}),
          tcp_fabric("TcpEncrypted", {.connections = 2, .protect = TcpProtection::kEncrypt})};
}

}  // namespace tersor::test
