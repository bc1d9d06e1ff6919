// See device_side.h.
#include "comm/reducer/device_side.h"

#include "kernels/device/device.h"
#include "kernels/device/step.h"

#include <cstring>

namespace tersor {
namespace {

constexpr std::uint32_t kFlags[] = {0, 1};

}  // namespace

DeviceSide::DeviceSide(StreamView trainer, std::size_t parameters)
    : trainer_(trainer),
      device_(kernels::current_device()),
      words_(sizeof(StateWords), Memory::kDevice),
      active_(parameters * sizeof(std::uint32_t), Memory::kDevice),
      is_active_(parameters, false),
      constants_(sizeof kFlags) {
  std::memcpy(constants_.pointer(), kFlags, sizeof kFlags);
  const kernels::PinnedBuffer words(sizeof(StateWords));
  const StateWords fresh;
  std::memcpy(words.pointer(), &fresh, sizeof fresh);
  kernels::copy_bytes(words_.pointer(), words.pointer(), sizeof fresh, stream());
  for (std::size_t i = 0; i < parameters; ++i) set_active(i, true);
  synchronize();
}

const std::uint32_t* DeviceSide::active(std::size_t parameter) const {
  return reinterpret_cast<const std::uint32_t*>(active_.pointer()) + parameter;
}

DeviceSide::Entry::Entry(const DeviceSide& side) : before_(kernels::current_device()) {
  if (before_ != side.device_) kernels::use_device(side.device_);
}

DeviceSide::Entry::~Entry() {
  try {
    kernels::use_device(before_);
  } catch (const Error&) {
    // It was in use before.
  }
}

void DeviceSide::become_worker() const {
  kernels::use_device(device_);
  kernels::ignore_captures();
}

void DeviceSide::follow_trainer() { kernels::order(trainer_, stream(), begun_); }
void DeviceSide::lead_trainer() { kernels::order(stream(), trainer_, ended_); }

void DeviceSide::set_active(std::size_t parameter, bool active) {
  if (is_active_[parameter] == active) return;
  is_active_[parameter] = active;
  const std::size_t flag = active ? 1 : 0;
  kernels::copy_bytes(active_.pointer() + parameter * sizeof kFlags[0],
                      constants_.pointer() + flag * sizeof kFlags[0], sizeof kFlags[0], stream());
}

void DeviceSide::advance_step() {
  kernels::advance_step(reinterpret_cast<StateWords*>(words_.pointer()), stream());
}

StateWords DeviceSide::read_words() const {
  const kernels::PinnedBuffer host(sizeof(StateWords));
  kernels::copy_bytes(host.pointer(), words_.pointer(), sizeof(StateWords), stream());
  synchronize();
  StateWords words;
  std::memcpy(&words, host.pointer(), sizeof words);
  return words;
}

void DeviceSide::write_step(std::uint32_t step) {
  const kernels::PinnedBuffer host(sizeof step);
  std::memcpy(host.pointer(), &step, sizeof step);
  kernels::copy_bytes(words_.pointer() + offsetof(StateWords, step), host.pointer(), sizeof step,
                      stream());
  synchronize();
}

}  // namespace tersor
