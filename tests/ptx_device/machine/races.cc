// Race detection in shared memory: two threads access the same byte between two barriers. No race
// if both read, if both are atomic, or if both are in the same warp with a warp-wide operation in
// between.
#include "tests/ptx_device/machine/access.h"

#include <string>

namespace ptx {
namespace {

constexpr std::uint16_t kThread = 0x7fff;   // mask of a Touch's writer or reader
constexpr std::uint16_t kAtomic = 0x8000;   // the writer was atomic
constexpr std::uint16_t kSeveral = 0x7fff;  // readers of several warps
constexpr std::uint16_t kOfWarp = 0x4000;   // several readers of a warp; plus the warp

std::size_t warp_of(std::uint16_t reader) {
  return reader >= kOfWarp ? reader - kOfWarp : (reader - 1u) / kLanes;
}

/// One byte of an access.
class Toucher {
 public:
  Toucher(Access& access, unsigned lane)
      : access_(access),
        lane_(lane),
        thread_(static_cast<std::uint16_t>(access.warp.index * kLanes + lane + 1)) {}

  void touch(std::uint64_t offset) {
    Touch& touch = access_.warp.block->touches[offset];
    check(touch, offset);
    if (access_.use == Use::kRead)
      note_read(touch);
    else
      note_write(touch);
  }

 private:
  bool ordered(std::uint16_t other, std::uint32_t phase, std::uint32_t sync) const {
    const Warp& warp = access_.warp;
    if (other == 0 || (other & kThread) == thread_ || phase != warp.block->phase) return true;
    return warp_of(other & kThread) == warp.index && sync != warp.sync_count;
  }

  void check(const Touch& touch, std::uint64_t offset) {
    const bool both_atomic = access_.use == Use::kAtomic && (touch.writer & kAtomic) != 0;
    if (!both_atomic && !ordered(touch.writer, touch.write_phase, touch.write_sync))
      say(offset, "thread " + std::to_string((touch.writer & kThread) - 1) +
                      " wrote there since the barrier");
    if (access_.use != Use::kRead && !ordered(touch.reader, touch.read_phase, touch.read_sync))
      say(offset, "another thread has read there since the barrier");
  }
  void say(std::uint64_t offset, const std::string& what) {
    complain(access_.warp, lane_,
             "a race in shared memory at " + std::to_string(offset) + ": " + what);
  }

  void note_read(Touch& touch) const {
    touch.reader = with_reader(touch);
    touch.read_phase = access_.warp.block->phase;
    touch.read_sync = access_.warp.sync_count;
  }
  /// The readers since the last barrier with a possible conflict with a write.
  std::uint16_t with_reader(const Touch& touch) const {
    const Warp& warp = access_.warp;
    const bool several =
        touch.reader != 0 && touch.reader != thread_ && touch.read_phase == warp.block->phase;
    if (!several) return thread_;
    if (warp_of(touch.reader) != warp.index) return kSeveral;
    return touch.read_sync == warp.sync_count ? kOfWarp + warp.index : thread_;
  }
  void note_write(Touch& touch) const {
    touch.writer =
        static_cast<std::uint16_t>(thread_ | (access_.use == Use::kAtomic ? kAtomic : 0));
    touch.write_phase = access_.warp.block->phase;
    touch.write_sync = access_.warp.sync_count;
  }

  Access& access_;
  const unsigned lane_;
  const std::uint16_t thread_;
};

}  // namespace

void check_race(Access& access, unsigned lane, std::uint64_t offset) {
  Toucher toucher(access, lane);
  for (unsigned i = 0; i < access.bytes; ++i) toucher.touch(offset + i);
}

}  // namespace ptx
