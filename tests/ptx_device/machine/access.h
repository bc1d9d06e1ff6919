// Memory accesses of loads, stores and atomics. Addresses are checked for all lanes of a warp at
// once. If the lanes access several allocations, each lane is checked separately.
#pragma once

#include "tests/ptx_device/machine/machine.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ptx {

/// An access of a warp, first with the kernel's addresses, then with host addresses. Inactive lanes
/// repeat the first active lane.
struct Access {
  Access(Warp& warp, const Instruction& ins, std::uint32_t lanes, unsigned bytes, Use use)
      : warp(warp), ins(ins), lanes(lanes), bytes(bytes), use(use) {}

  Warp& warp;
  const Instruction& ins;
  std::uint32_t lanes;
  unsigned bytes;  // per lane
  Use use;
  std::uint64_t addresses[kLanes];
  // host's address + shadow: the byte's "written" mark; 0: unknown
  std::int64_t shadow = 0;  // of all lanes, if `same`
  bool same = true;
  bool shared = false;
  bool contiguous = false;  // True if all lanes are active and access consecutive values
  bool uniform = false;     // True if all lanes access the same address
  std::int64_t shadows[kLanes];
};

inline void read_addresses(Access& access) {
  Warp& warp = access.warp;
  std::uint64_t* addresses = access.addresses;
  if (access.ins.narrow) {
    const auto* base = at<std::uint32_t>(warp, access.ins.a);
    const auto offset = static_cast<std::uint32_t>(access.ins.imm);
    for (unsigned i = 0; i < kLanes; ++i)
      addresses[i] = static_cast<std::uint32_t>(base[i] + offset);
  } else {
    const auto* base = at<std::uint64_t>(warp, access.ins.a);
    const auto offset = static_cast<std::uint64_t>(access.ins.imm);
    for (unsigned i = 0; i < kLanes; ++i) addresses[i] = base[i] + offset;
  }
  if (access.lanes == kAll) return;
  const std::uint64_t other = addresses[first_lane(access.lanes)];
  for (unsigned i = 0; i < kLanes; ++i)
    addresses[i] = contains(access.lanes, i) ? addresses[i] : other;
}

// Each function translates addresses to host addresses, or ends the kernel after a wrong address.
[[noreturn]] void misaligned(Access& access);
void check_room(Access& access, const char* space, std::size_t room);
void resolve_global_slowly(Access& access);
void resolve_generic(Access& access);
void check_races(Access& access);
void check_race(Access& access, unsigned lane, std::uint64_t offset);

inline void resolve_global(Access& access, std::uint64_t low, std::uint64_t high) {
  const Range& range = access.warp.block->ranges->slots[access.ins.slot];
  if (low < range.lo || high + access.bytes > range.hi) return resolve_global_slowly(access);
  for (std::uint64_t& address : access.addresses)
    address += static_cast<std::uint64_t>(range.delta);
  access.shadow = range.shadow;
}

inline void resolve_shared(Access& access, std::uint64_t high) {
  // cvta may keep addresses already in this space.
  Block& block = *access.warp.block;
  if (high + access.bytes > block.shared_bytes) check_room(access, "shared", block.shared_bytes);
  if (settings().check_races) check_races(access);
  const auto base = reinterpret_cast<std::uint64_t>(block.shared.data());
  for (std::uint64_t& address : access.addresses) address += base;
  access.shadow = block.shared_written.data() - block.shared.data();
  access.shared = true;
}

inline void resolve_local(Access& access, std::uint64_t high) {
  Block& block = *access.warp.block;
  const std::size_t room = block.kernel->local_bytes;
  if (high + access.bytes > room) check_room(access, "local", room);
  const auto base = reinterpret_cast<std::uint64_t>(block.local.data()) +
                    std::uint64_t{access.warp.index} * kLanes * room;
  const unsigned first = first_lane(access.lanes);
  for (unsigned i = 0; i < kLanes; ++i)
    access.addresses[i] += base + (contains(access.lanes, i) ? i : first) * room;
  access.shadow = block.local_written.data() - block.local.data();
}

inline void resolve_param(Access& access, std::uint64_t high) {
  const std::vector<char>& params = access.warp.block->launch->params;
  if (high + access.bytes > params.size()) check_room(access, "param", params.size());
  const auto base = reinterpret_cast<std::uint64_t>(params.data());
  for (std::uint64_t& address : access.addresses) address += base;
}

inline bool is_contiguous(const Access& access, std::uint64_t low) {
  if (access.lanes != kAll) return false;
  std::uint64_t wrong = 0;
  for (unsigned i = 0; i < kLanes; ++i)
    wrong |= access.addresses[i] ^ (low + std::uint64_t{i} * access.bytes);
  return wrong == 0;
}

/// Translates an instruction's addresses to host addresses, or ends the kernel.
template <Space kSpace>
inline void resolve(Access& access) {
  read_addresses(access);
  std::uint64_t low = access.addresses[0], high = low, all = 0;
  for (const std::uint64_t address : access.addresses) {
    low = low < address ? low : address;
    high = high > address ? high : address;
    all |= address;
  }
  if ((all & (access.bytes - 1)) != 0) misaligned(access);
  // Equal local addresses are different memory in each lane.
  access.uniform = low == high && kSpace != Space::kLocal && kSpace != Space::kGeneric;
  if constexpr (kSpace == Space::kGlobal || kSpace == Space::kShared)
    access.contiguous = is_contiguous(access, low);
  if constexpr (kSpace == Space::kGlobal)
    resolve_global(access, low, high);
  else if constexpr (kSpace == Space::kShared)
    resolve_shared(access, high);
  else if constexpr (kSpace == Space::kLocal)
    resolve_local(access, high);
  else if constexpr (kSpace == Space::kParam)
    resolve_param(access, high);
  else
    resolve_generic(access);
}

/// Reports reads of unwritten bytes.
void check_written_slowly(Access& access);
inline void check_written(Access& access) {
  if (access.same && access.shadow == 0) return;
  if (!access.contiguous || !access.same) return check_written_slowly(access);
  const char* marks = reinterpret_cast<const char*>(access.addresses[0]) + access.shadow;
  char all = 1;
  for (unsigned i = 0; i < kLanes * access.bytes; ++i) all &= marks[i];
  if (all == 0) check_written_slowly(access);
}

void set_written_slowly(const Access& access);
inline void set_written(const Access& access) {
  if (access.same && access.shadow == 0) return;
  if (!access.contiguous || !access.same) return set_written_slowly(access);
  std::memset(reinterpret_cast<char*>(access.addresses[0]) + access.shadow, 1,
              kLanes * access.bytes);
}

}  // namespace ptx
