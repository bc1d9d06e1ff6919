// The records that the commands write: one JSON object a measurement, an array a file.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tersor::bench {

/// Fields keep the order in which they were set.
using Record = nlohmann::ordered_json;

/// "AMD EPYC, 2 cores".
std::string machine_name();

/// An array of records in a file. A record is on disk as soon as it was added, so a run that is
/// cut short keeps what it measured.
class RecordFile {
 public:
  /// An empty path: records go nowhere. Throws InvalidArgument where the file cannot be written, so
  /// before anything was measured.
  explicit RecordFile(std::filesystem::path path);

  /// Adds machine, date (UTC) and commit, and writes. Throws Error where that fails.
  void add(Record record);
  /// The same of several, written together.
  void add_all(std::vector<Record> records);

 private:
  std::filesystem::path path_;
  Record records_ = Record::array();
};

}  // namespace tersor::bench
