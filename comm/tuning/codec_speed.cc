// The file of codec speeds: a line a codec and dtype, under three lines that say for which machine.
#include "comm/tuning/codec_speed.h"

#include "kernels/device/device.h"

#include <tersor/isa.h>

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

namespace tersor {
namespace {

constexpr std::string_view kVersionLine = "tersor codec speeds, version 1";
constexpr std::string_view kColumnsLine =
    "codec dtype; ns a call and ns a value of encode, decode, decode_more, reduce, encode_native, "
    "decode_native";
constexpr std::string_view kEnd = "end";
constexpr double kLargest = 1e12;  // ns; what is above was never measured

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

std::optional<Dtype> dtype_of(const std::string& name) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
    if (dtype_name(dtype) == name) return dtype;
  return std::nullopt;
}

bool read_nanoseconds(std::istream& stream, double& seconds) {
  double nanoseconds = 0;
  if (!(stream >> nanoseconds) || !std::isfinite(nanoseconds)) return false;
  seconds = nanoseconds * 1e-9;
  return nanoseconds >= 0 && nanoseconds < kLargest;
}

struct Entry {
  std::pair<std::string, Dtype> key;
  CodecCosts costs;
};

std::optional<Entry> parse_entry(const std::string& line) {
  std::istringstream stream(line);
  std::string spec, name, rest;
  if (!(stream >> spec >> name)) return std::nullopt;
  const std::optional<Dtype> dtype = dtype_of(name);
  if (!dtype) return std::nullopt;
  Entry entry{{spec, *dtype}, {}};
  for (WorkCost* cost : fields_of(entry.costs))
    if (!read_nanoseconds(stream, cost->per_call) || !read_nanoseconds(stream, cost->per_value))
      return std::nullopt;
  if (stream >> rest) return std::nullopt;
  return entry;
}

std::string entry_text(const std::pair<std::string, Dtype>& key, CodecCosts costs) {
  std::ostringstream stream;
  stream.precision(6);
  stream << key.first << ' ' << dtype_name(key.second);
  for (const WorkCost* cost : fields_of(costs))
    stream << ' ' << cost->per_call * 1e9 << ' ' << cost->per_value * 1e9;
  return stream.str();
}

}  // namespace

std::string machine_line(Memory memory) {
  if (memory == Memory::kDevice) return kernels::device_name();
  return processor() + ", " + std::string(isa_name(current_isa()));
}

namespace {

std::filesystem::path host_speeds_path(const std::string& option) {
  if (option == "none") return {};
  if (!option.empty()) return option;
  if (const char* file = std::getenv("TERSOR_CODEC_SPEEDS"))
    return std::string_view(file) == "none" ? "" : file;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return std::filesystem::path(cache) / "tersor" / "codec-speeds";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::filesystem::path(home) / ".cache" / "tersor" / "codec-speeds";
  return {};
}

}  // namespace

std::filesystem::path speeds_path(const std::string& option, Memory memory) {
  std::filesystem::path path = host_speeds_path(option);
  if (memory == Memory::kDevice && !path.empty()) path += "-device";
  return path;
}

CodecSpeeds::CodecSpeeds(std::filesystem::path path, Memory memory)
    : path_(std::move(path)), memory_(memory) {
  note_ = "codec speeds measured now and kept nowhere";
  if (!path_.empty()) load();
}

void CodecSpeeds::load() {
  const std::string name = path_.string();
  std::ifstream file(path_);
  note_ = "codec speeds measured now for " + name;
  if (!file) return;
  std::string version, machine, columns, line;
  std::getline(file, version) && std::getline(file, machine) && std::getline(file, columns);
  note_ = "codec speeds measured anew: " + name + " is ";
  if (version != kVersionLine) {
    note_ += "no such file or of another version";
    return;
  }
  if (machine != machine_line(memory_)) {
    note_ += "from another machine (" + machine + ")";
    return;
  }
  std::map<std::pair<std::string, Dtype>, CodecCosts> found;
  while (std::getline(file, line) && line != kEnd) {
    const std::optional<Entry> entry = parse_entry(line);
    if (!entry) break;
    found[entry->key] = entry->costs;
  }
  if (line != kEnd) {
    note_ += "damaged";
    return;
  }
  known_ = std::move(found);
  note_ = "codec speeds from " + name;
}

const CodecCosts& CodecSpeeds::costs(const std::string& spec, Dtype dtype) {
  const auto key = std::pair(spec, dtype);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  known_[key] = measure_codec(spec, dtype, memory_);
  write();
  return known_[key];
}

// Written beside and renamed, so that nobody ever reads half a file. A folder that cannot be
// written only means that the next run measures again.
void CodecSpeeds::write() {
  if (path_.empty()) return;
  std::error_code ignored;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), ignored);
  std::filesystem::path fresh = path_;
  fresh += "." + std::to_string(getpid());
  std::ofstream file(fresh);
  file << kVersionLine << '\n' << machine_line(memory_) << '\n' << kColumnsLine << '\n';
  for (const auto& [key, costs] : known_) file << entry_text(key, costs) << '\n';
  file << kEnd << '\n';
  file.close();
  if (file) std::filesystem::rename(fresh, path_, ignored);
  if (!file || ignored) std::filesystem::remove(fresh, ignored);
}

}  // namespace tersor
