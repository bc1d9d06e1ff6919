// Implements <tersor/tcp.h>.
#include <tersor/tcp.h>

#include <memory>
#include <utility>

#include "comm/transport/host/host_transport.h"
#include "comm/transport/host/world.h"
#include "comm/transport/tcp/meeting.h"
#include "comm/transport/tcp/wire.h"

namespace tersor {
namespace {

std::shared_ptr<host::World> world_at(tcp::Place place) {
  return std::make_shared<host::World>(std::make_unique<tcp::TcpWire>(std::move(place)));
}

}  // namespace

TcpTransport::TcpTransport(std::shared_ptr<host::World> world)
    : ForwardingTransport(std::make_unique<host::HostTransport>(world)), world_(std::move(world)) {}

TcpTransport::TcpTransport(KeyValueStore& store, int rank, int ranks, const TcpOptions& options)
    : TcpTransport(world_at(tcp::meet_in_store(store, rank, ranks, options))) {}

TcpTransport::TcpTransport(const std::filesystem::path& file, int rank, int ranks,
                           const TcpOptions& options)
    : TcpTransport(world_at(tcp::meet_in_file(file, rank, ranks, options))) {}

TcpTransport::TcpTransport(std::span<const std::string> addresses, std::string_view secret,
                           int rank, const TcpOptions& options)
    : TcpTransport(world_at(tcp::meet_at_addresses(addresses, secret, rank, options))) {}

TcpTransport::~TcpTransport() = default;

void TcpTransport::close() { world_->close(); }

}  // namespace tersor
