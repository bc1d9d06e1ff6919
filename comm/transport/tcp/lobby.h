// Ranks that share a secret, and know only the address of rank 0.
#pragma once

#include <tersor/tcp.h>

#include <memory>
#include <string>

namespace tersor::tcp {

/// Carries messages between rank 0 and each other rank, under TcpProtection::kEncrypt. Rank 0
/// listens at `address`; the other ranks call rank 0 with their first message. The secret is
/// TcpOptions::secret. Throws as the constructors of TcpTransport do.
std::unique_ptr<Transport> lobby(const std::string& address, int rank, int ranks,
                                 const TcpOptions& options);

}  // namespace tersor::tcp
