// Where ranks listen: words that people write, as endpoints.
#pragma once

#include <string>
#include <string_view>

#include "comm/transport/tcp/socket.h"

namespace tersor::tcp {

struct HostAndPort {
  std::string host;
  std::string port;
};

/// Reads "host:port" or "[address]:port". Throws InvalidArgument that shows how to write it.
HostAndPort parse_address(std::string_view text);

/// What a name or a number stands for. Throws TransportError where that is nothing; `whose` says
/// whose address it is.
Endpoint resolve(const HostAndPort& address, std::string_view whose);

/// This host's address by TcpOptions::address, with any port.
Endpoint own_endpoint(const std::string& wish);

/// The same for all processes of a host, and for no others.
std::string host_identity();

}  // namespace tersor::tcp
