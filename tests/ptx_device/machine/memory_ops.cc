// See memory_ops.h: what happens seldom.
#include "tests/ptx_device/machine/memory_ops.h"

namespace ptx {
namespace {

const char* verb(Use use) {
  return use == Use::kRead ? "reads" : use == Use::kWrite ? "writes" : "atomically changes";
}

}  // namespace

void bad_address(Warp& warp, unsigned lane, std::uint64_t address, unsigned bytes, Use use,
                 const char* space, std::size_t room) {
  std::ostringstream text;
  text << verb(use) << ' ' << bytes << " bytes at " << space << " address 0x" << std::hex << address
       << std::dec;
  if (room != 0) text << ", of " << room << " bytes";
  if (std::string(space) == "global") {
    const std::string where = Memory::get().describe(address);
    if (!where.empty()) text << ", " << where;
  }
  fault(warp, FaultKind::kAddress, lane, text.str());
}

void misaligned(Warp& warp, std::uint32_t lanes, const std::uint64_t* addresses, unsigned bytes,
                Use use) {
  for (unsigned i = 0; i < kLanes; ++i) {
    if (((lanes >> i) & 1) == 0 || addresses[i] % bytes == 0) continue;
    std::ostringstream text;
    text << verb(use) << ' ' << bytes << " bytes at address 0x" << std::hex << addresses[i]
         << ", which is no multiple of " << std::dec << bytes;
    fault(warp, FaultKind::kMisaligned, i, text.str());
  }
  fault(warp, FaultKind::kMisaligned, first_lane(lanes), "misaligned");
}

void resolve_slowly(Warp& warp, const Ins& ins, std::uint32_t lanes, std::uint64_t* addresses,
                    unsigned bytes, Use use, Resolved& resolved) {
  Block& block = *warp.block;
  RangeCache& range = block.cache[(&ins - block.kernel->code.data()) % block.cache.size()];
  resolved.same = false;
  const Allocation* last = nullptr;
  bool one = true;
  for (unsigned i = 0; i < kLanes; ++i) {
    if (((lanes >> i) & 1) == 0) continue;
    const std::uint64_t address = addresses[i];
    if (last == nullptr || address < last->lo || address + bytes > last->hi) {
      const Allocation* found = Memory::get().find(address);
      if (found == nullptr || address + bytes > found->hi)
        bad_address(warp, i, address, bytes, use, "global", 0);
      one = one && (last == nullptr || last == found);
      last = found;
    }
    addresses[i] = address + static_cast<std::uint64_t>(last->delta);
    resolved.shadows[i] = last->shadow;
  }
  if (one && last != nullptr) range = {last->lo, last->hi, last->delta, last->shadow};
  const unsigned first = first_lane(lanes);
  for (unsigned i = 0; i < kLanes; ++i) {
    if (((lanes >> i) & 1) != 0) continue;
    addresses[i] = addresses[first];
    resolved.shadows[i] = resolved.shadows[first];
  }
}

void resolve_generic(Warp& warp, const Ins& ins, std::uint32_t lanes, std::uint64_t* addresses,
                     unsigned bytes, Use use, Resolved& resolved) {
  Block& block = *warp.block;
  resolved.same = false;
  for (unsigned i = 0; i < kLanes; ++i) {
    if (((lanes >> i) & 1) == 0) continue;
    const std::uint64_t address = addresses[i];
    const auto in = [&](std::uint64_t window) {
      return address >= window && address < window + kWindowBytes;
    };
    resolved.shadows[i] = 0;
    if (in(kSharedWindow)) {
      const std::uint64_t offset = address - kSharedWindow;
      if (offset + bytes > block.shared_bytes)
        bad_address(warp, i, offset, bytes, use, "shared", block.shared_bytes);
      if (settings().check_races) check_race(warp, i, offset, bytes, use);
      addresses[i] = reinterpret_cast<std::uint64_t>(block.shared.data()) + offset;
      resolved.shadows[i] = block.shared_written.data() - block.shared.data();
    } else if (in(kLocalWindow)) {
      const std::uint64_t offset = address - kLocalWindow, room = block.kernel->local_bytes;
      if (offset + bytes > room) bad_address(warp, i, offset, bytes, use, "local", room);
      addresses[i] = reinterpret_cast<std::uint64_t>(block.local.data()) + offset +
                     (std::uint64_t{warp.index} * kLanes + i) * room;
      resolved.shadows[i] = block.local_written.data() - block.local.data();
    } else if (in(kParamWindow)) {
      const std::uint64_t offset = address - kParamWindow, room = block.launch->params.size();
      if (offset + bytes > room || use != Use::kRead)
        bad_address(warp, i, offset, bytes, use, "param", room);
      addresses[i] = reinterpret_cast<std::uint64_t>(block.launch->params.data()) + offset;
    } else {
      const Allocation* found = Memory::get().find(address);
      if (found == nullptr || address + bytes > found->hi)
        bad_address(warp, i, address, bytes, use, "global", 0);
      addresses[i] = address + static_cast<std::uint64_t>(found->delta);
      resolved.shadows[i] = found->shadow;
    }
  }
  const unsigned first = first_lane(lanes);
  for (unsigned i = 0; i < kLanes; ++i) {
    if (((lanes >> i) & 1) != 0) continue;
    addresses[i] = addresses[first];
    resolved.shadows[i] = resolved.shadows[first];
  }
  (void)ins;
}

void check_written(Warp& warp, const Ins& ins, std::uint32_t lanes, const std::uint64_t* addresses,
                   unsigned bytes, const Resolved& resolved) {
  if (resolved.same && resolved.shadow == 0) return;
  const std::uint64_t wanted = 0x0101010101010101u;
  for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
    const unsigned i = first_lane(left);
    const std::int64_t shadow = resolved.same ? resolved.shadow : resolved.shadows[i];
    if (shadow == 0) continue;
    const char* marks = reinterpret_cast<const char*>(addresses[i]) + shadow;
    bool fine = true;
    if (ins.used == ~std::uint64_t{0}) {
      for (unsigned k = 0; k < bytes; k += 8)
        fine = fine && std::memcmp(marks + k, &wanted, bytes - k < 8 ? bytes - k : 8) == 0;
    } else {
      for (unsigned k = 0; k < bytes; ++k)
        fine = fine && (marks[k] != 0 || ((ins.used >> k) & 1) == 0);
    }
    if (fine) continue;
    std::ostringstream text;
    text << "reads " << bytes << " bytes of which some were never written";
    if (resolved.shared) {
      text << ", at shared address "
           << addresses[i] - reinterpret_cast<std::uint64_t>(warp.block->shared.data());
    }
    complain(warp, i, text.str());
    return;
  }
}

void set_written(std::uint32_t lanes, const std::uint64_t* addresses, unsigned bytes,
                 const Resolved& resolved) {
  if (resolved.same && resolved.shadow == 0) return;
  for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
    const unsigned i = first_lane(left);
    const std::int64_t shadow = resolved.same ? resolved.shadow : resolved.shadows[i];
    if (shadow != 0) std::memset(reinterpret_cast<char*>(addresses[i]) + shadow, 1, bytes);
  }
}

/// Two threads at one byte between two barriers, unless both read or both are atomic, or are of one
/// warp with a warp-wide operation in between.
void check_race(Warp& warp, unsigned lane, std::uint64_t offset, unsigned bytes, Use use) {
  Block& block = *warp.block;
  const auto thread = static_cast<std::uint16_t>(warp.index * kLanes + lane + 1);
  const auto ordered = [&](std::uint16_t other, std::uint32_t phase, std::uint32_t sync) {
    if (other == 0 || (other & 0x7fff) == thread || phase != block.phase) return true;
    return other != 0x7fff && ((other & 0x7fff) - 1) / kLanes == warp.index &&
           sync != warp.sync_count;
  };
  for (unsigned k = 0; k < bytes; ++k) {
    Touch& touch = block.touches[offset + k];
    // The highest bit of a writer: it was atomic.
    const bool both_atomic = use == Use::kAtomic && (touch.writer & 0x8000) != 0;
    if (!both_atomic && !ordered(touch.writer, touch.write_phase, touch.write_sync)) {
      complain(warp, lane,
               "a race in shared memory at " + std::to_string(offset + k) + ": thread " +
                   std::to_string((touch.writer & 0x7fff) - 1) + " wrote there since the barrier");
    }
    if (use != Use::kRead && !ordered(touch.reader, touch.read_phase, touch.read_sync)) {
      complain(warp, lane,
               "a race in shared memory at " + std::to_string(offset + k) +
                   ": another thread has read there since the barrier");
    }
    if (use == Use::kRead) {
      const bool several = touch.reader != 0 && touch.reader != thread &&
                           touch.read_phase == block.phase;
      touch.reader = several ? 0x7fff : thread;
      touch.read_phase = block.phase;
      touch.read_sync = warp.sync_count;
    } else {
      touch.writer = thread | (use == Use::kAtomic ? 0x8000 : 0);
      touch.write_phase = block.phase;
      touch.write_sync = warp.sync_count;
    }
  }
}

}  // namespace ptx
