// How ranks find each other: what they leave each other in a store, in files, or know beforehand.
#pragma once

#include <tersor/tcp.h>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "comm/transport/tcp/wire.h"

namespace tersor::tcp {

/// Files of one folder as a store: the key is the end of the name.
class FileStore final : public KeyValueStore {
 public:
  explicit FileStore(std::filesystem::path first_part) : first_part_(std::move(first_part)) {}

  /// Throws InvalidArgument where it cannot be written.
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Clock::time_point until) override;
  std::filesystem::path file(const std::string& key) const { return first_part_.string() + key; }

 private:
  const std::filesystem::path first_part_;
};

Place meet_in_store(KeyValueStore& store, int rank, int ranks, const TcpOptions& options);
Place meet_in_file(const std::filesystem::path& file, int rank, int ranks,
                   const TcpOptions& options);
Place meet_at_addresses(std::span<const std::string> addresses, std::string_view secret, int rank,
                        const TcpOptions& options);

}  // namespace tersor::tcp
