// How ranks find each other: what they leave each other in a store, in files, or know beforehand.
#pragma once

#include <tersor/tcp.h>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "comm/transport/tcp/wire.h"

namespace tersor::tcp {

Place meet_in_store(KeyValueStore& store, int rank, int ranks, const TcpOptions& options);
Place meet_in_file(const std::filesystem::path& file, int rank, int ranks,
                   const TcpOptions& options);
Place meet_at_addresses(std::span<const std::string> addresses, std::string_view secret, int rank,
                        const TcpOptions& options);

}  // namespace tersor::tcp
