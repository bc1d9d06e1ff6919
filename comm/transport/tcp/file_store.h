// Files as what ranks leave each other.
#pragma once

#include <tersor/tcp.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tersor::tcp {

/// Files of one folder as a store: the key is the end of the name. They are for their owner's eyes
/// alone, and nobody else's are believed.
class FileStore final : public KeyValueStore {
 public:
  explicit FileStore(std::filesystem::path first_part) : first_part_(std::move(first_part)) {}

  /// Throws InvalidArgument where it cannot be written.
  void set(const std::string& key, const std::string& value) override;
  /// Throws InvalidArgument where it cannot be read, or others could have written it.
  std::string get(const std::string& key, Clock::time_point until) override;
  /// Throws what `set` would throw now.
  void check_writable(const std::string& key) const;
  std::filesystem::path file(const std::string& key) const { return first_part_.string() + key; }
  /// Removes what was set here.
  void take_back();

 private:
  const std::filesystem::path first_part_;
  std::vector<std::filesystem::path> left_;
};

}  // namespace tersor::tcp
