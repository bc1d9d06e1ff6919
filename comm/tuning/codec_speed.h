// How quick the codecs are on this machine: measured once, and kept in a file.
#pragma once

#include "comm/tuning/model.h"

#include <filesystem>
#include <map>
#include <string>
#include <utility>

namespace tersor {

/// Times a codec's calls on one core, or on the current device, some tens of milliseconds. With
/// "+ef": with a residual.
CodecCosts measure_codec(const std::string& spec, Dtype dtype, Memory memory = Memory::kHost);

/// Seconds in which a native sum adds a byte that came to one that is there.
double measure_adding();

/// What speeds depend on: the processor and the instruction set in use, or the current device. One
/// line.
std::string machine_line(Memory memory = Memory::kHost);

/// Speeds from a file, and those that were measured since; written back after each measurement.
class CodecSpeeds {
 public:
  /// Reads the file, if it is there; an empty path: no file. Never throws for what it holds.
  explicit CodecSpeeds(std::filesystem::path path, Memory memory = Memory::kHost);

  /// From the file, else measured now and written.
  const CodecCosts& costs(const std::string& spec, Dtype dtype);

  /// What became of the file, one sentence.
  const std::string& note() const { return note_; }

 private:
  void load();
  void write();

  std::filesystem::path path_;
  Memory memory_;
  std::string note_;
  std::map<std::pair<std::string, Dtype>, CodecCosts> known_;
};

/// Where speeds are kept, from AutoOptions::speeds_file and the environment; empty: nowhere.
std::filesystem::path speeds_path(const std::string& option, Memory memory = Memory::kHost);

}  // namespace tersor
