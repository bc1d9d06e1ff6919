// Implements <tersor/tcp.h>.
#include <tersor/network.h>
#include <tersor/tcp.h>

#include <memory>

#include "comm/transport/tcp/meeting.h"
#include "comm/transport/tcp/wire.h"

namespace tersor {
namespace {

std::unique_ptr<Transport> transport_at(tcp::Place place) {
  return make_transport(std::make_unique<tcp::TcpWire>(std::move(place)));
}

}  // namespace

TcpTransport::TcpTransport(KeyValueStore& store, int rank, int ranks, const TcpOptions& options)
    : ForwardingTransport(transport_at(tcp::meet_in_store(store, rank, ranks, options))) {}

TcpTransport::TcpTransport(const std::filesystem::path& file, int rank, int ranks,
                           const TcpOptions& options)
    : ForwardingTransport(transport_at(tcp::meet_in_file(file, rank, ranks, options))) {}

TcpTransport::TcpTransport(std::span<const std::string> addresses, std::string_view secret,
                           int rank, const TcpOptions& options)
    : ForwardingTransport(transport_at(tcp::meet_at_addresses(addresses, secret, rank, options))) {}

TcpTransport::~TcpTransport() = default;

}  // namespace tersor
