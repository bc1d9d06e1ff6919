// The fabrics of ranks over TCP that are threads of one process, by one connection and by several.
#include "tests/tcp/meeting.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

Fabric tcp_fabric(const std::string& name, int connections) {
  const auto run = [connections](int ranks, const Body& body) {
    run_ranks(tcp_transports(ranks, connections), body);
  };
  return {.name = name, .run = run, .head_bytes = 64};
}

}  // namespace

std::vector<Fabric> fabrics() { return {tcp_fabric("Tcp", 1), tcp_fabric("TcpLanes", 3)}; }

}  // namespace tersor::test
