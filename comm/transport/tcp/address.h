// Converts addresses in text form to endpoints.
#pragma once

#include <string>
#include <string_view>

#include "comm/transport/tcp/socket.h"

namespace tersor::tcp {

struct HostAndPort {
  std::string host;
  std::string port;
};

/// Parses "host:port" or "[address]:port". Throws InvalidArgumentError with the valid forms.
HostAndPort parse_address(std::string_view text);

/// Resolves a name or number. Throws TransportError on failure; `owner` names the owner in the
/// text.
Endpoint resolve(const HostAndPort& address, std::string_view owner);

/// This host's address selected by TcpOptions::address, with any port.
Endpoint own_endpoint(const std::string& requested);

/// A text equal for all processes of a host and different on other hosts.
std::string host_identity();

}  // namespace tersor::tcp
