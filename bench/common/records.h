// The records of all commands: a JSON object per measurement, an array per file.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tersor::bench {

/// Fields keep their order of insertion.
using Record = nlohmann::ordered_json;

/// "AMD EPYC, 2 cores".
std::string machine_name();
/// The result of `git describe` at configuration.
std::string commit_name();

/// A file with an array of records. Each record is on disk after `add`: an interrupted run keeps
/// all earlier records.
class RecordFile {
 public:
  /// An empty path discards records. Throws InvalidArgumentError if the file cannot be written,
  /// before any measurement.
  explicit RecordFile(std::filesystem::path path);

  /// Adds command line, machine, date (UTC) and commit, and writes the file. Throws Error if
  /// writing fails.
  void add(Record record);
  /// Adds several records in a single write.
  void add_all(std::vector<Record> records);

 private:
  std::filesystem::path path_;
  Record records_ = Record::array();
};

}  // namespace tersor::bench
