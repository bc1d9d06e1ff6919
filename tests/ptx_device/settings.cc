// See settings.h.
#include "tests/ptx_device/settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace ptx {
namespace {

long number(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : std::strtol(value, nullptr, 0);
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
  const char* schedule = std::getenv("PTX_DEVICE_SCHEDULE");
  made.schedule = schedule == nullptr || std::strcmp(schedule, "together") == 0
                      ? Schedule::kTogether
                  : std::strcmp(schedule, "split") == 0 ? Schedule::kSplit
                                                        : Schedule::kAlone;
  made.check_reads = number("PTX_DEVICE_CHECK_READS", 1) != 0;
  made.check_races = number("PTX_DEVICE_CHECK_RACES", 0) != 0;
  const char* stores = std::getenv("PTX_DEVICE_STORES");
  made.late_stores = stores != nullptr && std::strcmp(stores, "late") == 0;
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
