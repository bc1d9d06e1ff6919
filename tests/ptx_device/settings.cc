// See settings.h.
#include "tests/ptx_device/settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace ptx {
namespace {

[[noreturn]] void refuse(const char* name, const char* value, const char* known) {
  std::fprintf(stderr, "ptx-device: %s is \"%s\", not %s\n", name, value, known);
  std::abort();
}

/// Returns null if the variable is unset.
const char* text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

long number(const char* name, long otherwise) {
  const char* value = text(name);
  if (value == nullptr) return otherwise;
  char* end = nullptr;
  const long found = std::strtol(value, &end, 0);
  if (*end != '\0') refuse(name, value, "a number");
  return found;
}

Schedule schedule() {
  const char* name = "PTX_DEVICE_SCHEDULE";
  const std::string value = text(name) == nullptr ? "together" : text(name);
  if (value == "together") return Schedule::kTogether;
  if (value == "split") return Schedule::kSplit;
  if (value == "alone") return Schedule::kAlone;
  refuse(name, value.c_str(), "together, split or alone");
}

bool stores_are_late() {
  const char* name = "PTX_DEVICE_STORES";
  const char* value = text(name);
  if (value != nullptr && std::strcmp(value, "late") != 0) refuse(name, value, "late");
  return value != nullptr;
}

Settings read() {
  Settings made{};
  const char* capability = std::getenv("PTX_DEVICE_CAPABILITY");
  made.major = 9;
  if (capability != nullptr) std::sscanf(capability, "%d.%d", &made.major, &made.minor);
  made.multiprocessors = static_cast<int>(number("PTX_DEVICE_SMS", 132));
  made.devices = static_cast<int>(number("PTX_DEVICE_COUNT", 1));
  made.memory_bytes = static_cast<std::size_t>(number("PTX_DEVICE_MEMORY", 4096)) << 20;
  made.seed = static_cast<std::uint64_t>(number("PTX_DEVICE_SEED", 1));
  const unsigned cores = std::thread::hardware_concurrency();
  made.threads = static_cast<unsigned>(number("PTX_DEVICE_THREADS", cores == 0 ? 1 : cores));
  made.limit = static_cast<std::uint64_t>(number("PTX_DEVICE_LIMIT", 4000)) * 1000000;
  made.schedule = schedule();
  made.check_reads = number("PTX_DEVICE_CHECK_READS", 1) != 0;
  made.check_races = number("PTX_DEVICE_CHECK_RACES", 0) != 0;
  made.late_stores = stores_are_late();
  made.delay = number("PTX_DEVICE_DELAY", 0) != 0;
  made.open = number("PTX_DEVICE_OPEN", 0) != 0;
  made.poison = static_cast<int>(number("PTX_DEVICE_POISON", 0xcb));
  made.strict = number("PTX_DEVICE_STRICT", 0) != 0;
  made.log = static_cast<int>(number("PTX_DEVICE_LOG", 0));
  made.statistics = number("PTX_DEVICE_STATISTICS", 0) != 0;
  const char* fail = std::getenv("PTX_DEVICE_FAIL");
  made.fail = fail == nullptr ? "" : fail;
  return made;
}

}  // namespace

const Settings& read_settings() {
  static const Settings* made = new Settings(read());
  __atomic_store_n(&known_settings, made, __ATOMIC_RELEASE);
  return *made;
}

}  // namespace ptx
