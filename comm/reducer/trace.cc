#include "comm/reducer/trace.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace tersor {
namespace {

using std::chrono::nanoseconds;

constexpr std::uint32_t kTrainerRow = 1, kWireRow = 2, kFirstParameterRow = 3;
constexpr std::array<const char*, 6> kNames = {"ready",  "encode",     "reduce",
                                               "decode", "on its way", "wait"};

std::filesystem::path with_suffix(const std::filesystem::path& path, const std::string& suffix) {
  return path.parent_path() / (path.stem().string() + suffix + path.extension().string());
}

/// The trace files of the reducers in this process.
class TraceFiles {
 public:
  std::filesystem::path acquire(const std::filesystem::path& path, const std::string& suffix) {
    const std::lock_guard lock(mutex_);
    std::filesystem::path file = with_suffix(path, suffix);
    for (int number = 2; !taken_.insert(file).second; ++number)
      file = with_suffix(path, "." + std::to_string(number) + suffix);
    return file;
  }
  void release(const std::filesystem::path& file) {
    const std::lock_guard lock(mutex_);
    taken_.erase(file);
  }

 private:
  std::mutex mutex_;
  std::set<std::filesystem::path> taken_;
};

/// Never destroyed, because a reducer may outlive other globals.
TraceFiles& files() {
  static TraceFiles& all = *new TraceFiles;
  return all;
}

/// A JSON string.
std::string quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    std::array<char, 8> escaped{};
    if (static_cast<unsigned char>(c) < 0x20) {
      std::snprintf(escaped.data(), escaped.size(), "\\u%04x", static_cast<unsigned>(c));
      quoted += escaped.data();
    } else {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + '"';
}

/// Microseconds, as a decimal number.
std::string micros(nanoseconds time) {
  std::string text = std::to_string(time.count() % 1000 + 1000);
  text[0] = '.';
  return std::to_string(time.count() / 1000) + text;
}

std::uint32_t row_of(const TraceEvent& event) {
  if (event.type == TraceType::kWait) return kTrainerRow;
  if (event.type == TraceType::kWire) return kWireRow;
  return kFirstParameterRow + event.parameter;
}

/// Writes events and the names of rows, separated by commas.
class TraceWriter {
 public:
  TraceWriter(std::ostream& file, int rank, nanoseconds epoch)
      : file_(file), rank_(std::to_string(rank)), epoch_(epoch) {}

  void name(const char* what, std::uint32_t row, std::string_view name) {
    begin(what, "M", row) << ",\"args\":{\"name\":" << quoted(name) << "}}";
  }

  void event(const TraceEvent& event) {
    const bool is_instant = event.type == TraceType::kReady;
    const auto since = [&](Clock::time_point time) {
      return epoch_ + std::chrono::duration_cast<nanoseconds>(time.time_since_epoch());
    };
    std::ostream& file =
        begin(kNames[static_cast<std::size_t>(event.type)], is_instant ? "i" : "X", row_of(event));
    file << ",\"ts\":" << micros(since(event.begin));
    if (is_instant)
      file << ",\"s\":\"t\"";
    else
      file << ",\"dur\":" << micros(since(event.end) - since(event.begin));
    file << ",\"args\":{\"step\":" << event.step << "}}";
  }

 private:
  std::ostream& begin(const char* name, const char* phase, std::uint32_t row) {
    file_ << (std::exchange(is_first_, false) ? "\n" : ",\n");
    return file_ << "{\"name\":\"" << name << "\",\"ph\":\"" << phase << "\",\"pid\":" << rank_
                 << ",\"tid\":" << row;
  }

  std::ostream& file_;
  const std::string rank_;
  const nanoseconds epoch_;
  bool is_first_ = true;
};

nanoseconds steady_clock_epoch() {
  return std::chrono::duration_cast<nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch()) -
         std::chrono::duration_cast<nanoseconds>(Clock::now().time_since_epoch());
}

}  // namespace

ReducerTrace::ReducerTrace(const std::filesystem::path& path, int rank,
                           const Parameters& parameters)
    : file_(files().acquire(std::filesystem::absolute(path).lexically_normal(),
                            ".rank" + std::to_string(rank))),
      rank_(rank),
      parameters_(parameters),
      epoch_(steady_clock_epoch()) {
  if (std::ofstream(file_, std::ios::app)) return;
  files().release(file_);
  throw InvalidArgumentError("a trace cannot be written to \"" + file_.string() + "\"");
}

ReducerTrace::~ReducerTrace() {
  try {
    write();
  } catch (...) {  // a destructor cannot report the error
  }
  files().release(file_);
}

void ReducerTrace::write() const {
  const std::filesystem::path partial = file_.string() + ".part";
  std::ofstream file(partial);
  file << "{\"traceEvents\":[";
  TraceWriter writer(file, rank_, epoch_);
  writer.name("process_name", 0, "rank " + std::to_string(rank_));
  writer.name("thread_name", kTrainerRow, "trainer");
  writer.name("thread_name", kWireRow, "wire");
  for (std::uint32_t i = 0; i < parameters_.count(); ++i)
    writer.name("thread_name", kFirstParameterRow + i, parameters_.all[i].name);
  for (const TraceRing* ring : {&trainer, &sender})
    ring->for_each([&](const TraceEvent& event) { writer.event(event); });
  file << "\n]}\n";
  file.close();
  std::error_code failed;
  if (file) std::filesystem::rename(partial, file_, failed);
  if (!file || failed) throw Error("the trace could not be written to \"" + file_.string() + "\"");
}

}  // namespace tersor
