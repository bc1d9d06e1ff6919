// The device of this test program is the emulator.

#include "tests/support/test_device.h"

#include "tests/emulated/emulator.h"

#include <map>
#include <memory>

namespace tersor::test {
namespace {

class EmulatedDevice final : public TestDevice {
 public:
  EmulatedDevice() { set_test_device(this); }

  std::byte* allocate(std::size_t bytes) override { return new std::byte[bytes]; }
  void release(std::byte* memory) override { delete[] memory; }

  void declare(std::byte* begin, std::size_t bytes) override {
    if (bytes == 0) return;
    regions_[begin] = std::make_unique<emulator::Region>(
        begin, bytes, emulator::Written::kNo, "a span of " + std::to_string(bytes) + " bytes");
  }
  void withdraw(std::byte* begin) override { regions_.erase(begin); }
  void prepare(const std::byte* begin, std::size_t bytes, Use use) override {
    emulator::mark(begin, bytes,
                   use == Use::kInput ? emulator::Written::kYes : emulator::Written::kNo);
  }

  StreamView stream() override { return {}; }
  void synchronize() override {}
  bool is_fast() const override { return false; }
  std::size_t launches() const override { return emulator::settings().launches; }

 private:
  std::map<std::byte*, std::unique_ptr<emulator::Region>> regions_;
};

EmulatedDevice device;

}  // namespace
}  // namespace tersor::test
