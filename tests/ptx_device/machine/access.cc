// See access.h: the slow paths.
#include "tests/ptx_device/machine/access.h"

#include <cstring>
#include <sstream>
#include <string>

namespace ptx {
namespace {

const char* verb(Use use) {
  return use == Use::kRead ? "reads" : use == Use::kWrite ? "writes" : "atomically changes";
}

[[noreturn]] void bad_address(Access& access, unsigned lane, std::uint64_t address,
                              const std::string& space, std::size_t room) {
  std::ostringstream text;
  text << verb(access.use) << ' ' << access.bytes << " bytes at " << space << " address 0x"
       << std::hex << address << std::dec;
  if (room != 0) text << ", of " << room << " bytes";
  const std::string where = space == "global" ? Memory::get().describe(address) : "";
  if (!where.empty()) text << ", " << where;
  fault(access.warp, FaultKind::kAddress, lane, text.str());
}

const Allocation& allocation_of(Access& access, unsigned lane, std::uint64_t address) {
  const Allocation* found = Memory::get().find(address);
  if (found == nullptr || address + access.bytes > found->hi)
    bad_address(access, lane, address, "global", 0);
  return *found;
}

/// The range of an address, from recently found ranges or from the memory.
const Range& range_of(Access& access, unsigned lane, std::uint64_t address) {
  Ranges& ranges = *access.warp.block->ranges;
  for (const Range& range : ranges.recent)
    if (range.holds(address, access.bytes)) return range;
  const Allocation& found = allocation_of(access, lane, address);
  Range& oldest = ranges.recent[ranges.next++ % ranges.recent.size()];
  return oldest = {found.lo, found.hi, found.delta, found.shadow};
}

/// Inactive lanes repeat the first active lane.
void fill_others(Access& access) {
  const unsigned first = first_lane(access.lanes);
  for (unsigned i = 0; i < kLanes; ++i) {
    if (contains(access.lanes, i)) continue;
    access.addresses[i] = access.addresses[first];
    access.shadows[i] = access.shadows[first];
  }
}

/// The address of a lane in a window or in global memory.
class GenericAddress {
 public:
  GenericAddress(Access& access, unsigned lane)
      : access_(access),
        block_(*access.warp.block),
        lane_(lane),
        address_(access.addresses[lane]) {}

  void resolve() {
    access_.shadows[lane_] = 0;
    if (in(kSharedWindow))
      resolve_shared(address_ - kSharedWindow);
    else if (in(kLocalWindow))
      resolve_local(address_ - kLocalWindow);
    else if (in(kParamWindow))
      resolve_param(address_ - kParamWindow);
    else
      resolve_global();
  }

 private:
  bool in(std::uint64_t window) const {
    return address_ >= window && address_ < window + kWindowBytes;
  }
  void set(const char* base, std::uint64_t offset) {
    access_.addresses[lane_] = reinterpret_cast<std::uint64_t>(base) + offset;
  }
  void check_room(std::uint64_t offset, const char* space, std::size_t room) {
    if (offset + access_.bytes > room) bad_address(access_, lane_, offset, space, room);
  }

  void resolve_shared(std::uint64_t offset) {
    check_room(offset, "shared", block_.shared_bytes);
    if (settings().check_races) check_race(access_, lane_, offset);
    set(block_.shared.data(), offset);
    access_.shadows[lane_] = block_.shared_written.data() - block_.shared.data();
  }
  void resolve_local(std::uint64_t offset) {
    const std::size_t room = block_.kernel->local_bytes;
    check_room(offset, "local", room);
    set(block_.local.data(), offset + (std::uint64_t{access_.warp.index} * kLanes + lane_) * room);
    access_.shadows[lane_] = block_.local_written.data() - block_.local.data();
  }
  void resolve_param(std::uint64_t offset) {
    const std::vector<char>& params = block_.launch->params;
    if (access_.use != Use::kRead) bad_address(access_, lane_, offset, "param", params.size());
    check_room(offset, "param", params.size());
    set(params.data(), offset);
  }
  void resolve_global() {
    const Range& found = range_of(access_, lane_, address_);
    access_.addresses[lane_] = address_ + static_cast<std::uint64_t>(found.delta);
    access_.shadows[lane_] = found.shadow;
  }

  Access& access_;
  const Block& block_;
  const unsigned lane_;
  const std::uint64_t address_;
};

/// The lanes with unset marks. A lane has kWords words of marks, with a byte per accessed byte.
template <class Word, unsigned kWords>
std::uint32_t lanes_unset(const Access& access) {
  constexpr Word kSet = static_cast<Word>(0x0101010101010101u);
  std::uint32_t unset = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    const std::int64_t shadow = access.same ? access.shadow : access.shadows[i];
    if (shadow == 0) continue;
    const char* marks = reinterpret_cast<const char*>(access.addresses[i]) + shadow;
    Word words[kWords];
    std::memcpy(words, marks, sizeof(words));
    bool fine = true;
    for (const Word word : words) fine = fine && word == kSet;
    unset |= std::uint32_t{!fine} << i;
  }
  return unset & access.lanes;
}
std::uint32_t lanes_unset(const Access& access) {
  switch (access.bytes) {
    case 1:
      return lanes_unset<std::uint8_t, 1>(access);
    case 2:
      return lanes_unset<std::uint16_t, 1>(access);
    case 4:
      return lanes_unset<std::uint32_t, 1>(access);
    case 8:
      return lanes_unset<std::uint64_t, 1>(access);
    case 16:
      return lanes_unset<std::uint64_t, 2>(access);
    default:
      return lanes_unset<std::uint64_t, 4>(access);
  }
}

/// True if an unwritten byte of the access is used.
bool is_needed(const Access& access, unsigned lane) {
  const std::int64_t shadow = access.same ? access.shadow : access.shadows[lane];
  const char* marks = reinterpret_cast<const char*>(access.addresses[lane]) + shadow;
  for (unsigned i = 0; i < access.bytes; ++i)
    if (marks[i] == 0 && ((access.ins.used >> i) & 1) != 0) return true;
  return false;
}

}  // namespace

void misaligned(Access& access) {
  unsigned lane = first_lane(access.lanes);
  while (!contains(access.lanes, lane) || access.addresses[lane] % access.bytes == 0) ++lane;
  std::ostringstream text;
  text << verb(access.use) << ' ' << access.bytes << " bytes at address 0x" << std::hex
       << access.addresses[lane] << ", which is no multiple of " << std::dec << access.bytes;
  fault(access.warp, FaultKind::kMisaligned, lane, text.str());
}

void check_room(Access& access, const char* space, std::size_t room) {
  for (unsigned i = 0; i < kLanes; ++i)
    if (access.addresses[i] + access.bytes > room)
      bad_address(access, contains(access.lanes, i) ? i : first_lane(access.lanes),
                  access.addresses[i], space, room);
}

void resolve_global_slowly(Access& access) {
  Ranges& ranges = *access.warp.block->ranges;
  const Range* last = nullptr;
  bool one = true;
  for (std::uint32_t left = access.lanes; left != 0; left &= left - 1) {
    const unsigned i = first_lane(left);
    std::uint64_t& address = access.addresses[i];
    if (last == nullptr || !last->holds(address, access.bytes)) {
      const Range& found = range_of(access, i, address);
      one = one && (last == nullptr || last->lo == found.lo);
      last = &found;
    }
    address += static_cast<std::uint64_t>(last->delta);
    access.shadows[i] = last->shadow;
  }
  if (one) ranges.slots[access.ins.slot] = *last;
  access.same = false;
  fill_others(access);
}

void resolve_generic(Access& access) {
  access.same = false;
  for (std::uint32_t left = access.lanes; left != 0; left &= left - 1)
    GenericAddress(access, first_lane(left)).resolve();
  fill_others(access);
}

void check_races(Access& access) {
  for (std::uint32_t left = access.lanes; left != 0; left &= left - 1)
    check_race(access, first_lane(left), access.addresses[first_lane(left)]);
}

void check_written_slowly(Access& access) {
  for (std::uint32_t left = lanes_unset(access); left != 0; left &= left - 1) {
    const unsigned i = first_lane(left);
    if (!is_needed(access, i)) continue;
    std::ostringstream text;
    text << "reads " << access.bytes << " bytes of which some were never written";
    const Block& block = *access.warp.block;
    if (access.shared)
      text << ", at shared address "
           << access.addresses[i] - reinterpret_cast<std::uint64_t>(block.shared.data());
    return complain(access.warp, i, text.str());
  }
}

void set_written_slowly(const Access& access) {
  for (std::uint32_t left = access.lanes; left != 0; left &= left - 1) {
    const unsigned i = first_lane(left);
    const std::int64_t shadow = access.same ? access.shadow : access.shadows[i];
    if (shadow != 0)
      std::memset(reinterpret_cast<char*>(access.addresses[i]) + shadow, 1, access.bytes);
  }
}

}  // namespace ptx
