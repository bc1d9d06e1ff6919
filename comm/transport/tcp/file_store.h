// Files as a key-value store.
#pragma once

#include <tersor/tcp.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tersor::tcp {

/// Files of a folder as a store; the key is the end of the file name. Files are readable and
/// writable for their owner only. Files with other permissions are rejected.
class FileStore final : public KeyValueStore {
 public:
  explicit FileStore(std::filesystem::path prefix) : prefix_(std::move(prefix)) {}

  /// Throws InvalidArgumentError if the file cannot be written.
  void set(const std::string& key, const std::string& value) override;
  /// Throws InvalidArgumentError if the file cannot be read or could have been written by other
  /// users.
  std::string get(const std::string& key, Clock::time_point until) override;
  /// Throws the errors of `set`, without storing a value.
  void check_writable(const std::string& key) const;
  std::filesystem::path file(const std::string& key) const { return prefix_.string() + key; }
  /// Removes the values stored by this object.
  void remove_stored();

 private:
  const std::filesystem::path prefix_;
  std::vector<std::filesystem::path> stored_;
};

}  // namespace tersor::tcp
