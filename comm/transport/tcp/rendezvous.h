// A transport for ranks with a common secret and the address of rank 0 only.
#pragma once

#include <tersor/tcp.h>

#include <memory>
#include <string>

namespace tersor::tcp {

/// Carries messages between rank 0 and each other rank, under TcpProtection::kEncrypt. Rank 0
/// listens at `address`. The other ranks connect to rank 0 with the first message. The secret is
/// TcpOptions::secret. Throws the exceptions of make_tcp_transport.
std::unique_ptr<Transport> make_rendezvous_transport(const std::string& address, int rank,
                                                     int ranks, const TcpOptions& options);

}  // namespace tersor::tcp
