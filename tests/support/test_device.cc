// See test_device.h.

#include "tests/support/test_device.h"

#include <stdexcept>
#include <utility>

namespace tersor::test {
namespace {

struct Choice {
  TestDevice* device = nullptr;
  std::string missing;
};

Choice& choice() {
  static Choice chosen;  // constructed on first use, before main
  return chosen;
}

}  // namespace

TestDevice* test_device() {
  if (!choice().missing.empty()) throw std::runtime_error(choice().missing);
  return choice().device;
}

void set_test_device(TestDevice* device, std::string why) { choice() = {device, std::move(why)}; }

Memory default_memory() { return test_device() == nullptr ? Memory::kHost : Memory::kDevice; }

}  // namespace tersor::test
