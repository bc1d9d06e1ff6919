// Loads, stores and atomics: addresses are checked for all lanes of a warp at once, and one by one
// only where they do not all lie in one allocation.
#pragma once

#include "tests/ptx_device/machine/machine.h"

#include <cstring>
#include <sstream>

namespace ptx {

inline unsigned first_lane(std::uint32_t lanes) { return static_cast<unsigned>(__builtin_ctz(lanes)); }

/// The addresses that an instruction names; lanes that do not take part repeat the first one's.
inline void addresses_of(Warp& warp, const Ins& ins, std::uint32_t lanes, std::uint64_t* addresses) {
  if (ins.narrow) {
    const auto* base = at<std::uint32_t>(warp, ins.a);
    const auto offset = static_cast<std::uint32_t>(ins.imm);
    for (unsigned i = 0; i < kLanes; ++i) addresses[i] = static_cast<std::uint32_t>(base[i] + offset);
  } else {
    const auto* base = at<std::uint64_t>(warp, ins.a);
    const auto offset = static_cast<std::uint64_t>(ins.imm);
    for (unsigned i = 0; i < kLanes; ++i) addresses[i] = base[i] + offset;
  }
  if (lanes == kAll) return;
  const std::uint64_t other = addresses[first_lane(lanes)];
  for (unsigned i = 0; i < kLanes; ++i)
    addresses[i] = ((lanes >> i) & 1) != 0 ? addresses[i] : other;
}

struct Resolved {
  std::int64_t shadow = 0;      // of all lanes, where `same`
  bool same = true;
  std::int64_t shadows[kLanes];
  bool shared = false;
};

[[noreturn]] void bad_address(Warp& warp, unsigned lane, std::uint64_t address, unsigned bytes,
                              Use use, const char* space, std::size_t room);
[[noreturn]] void misaligned(Warp& warp, std::uint32_t lanes, const std::uint64_t* addresses,
                             unsigned bytes, Use use);
void resolve_slowly(Warp& warp, const Ins& ins, std::uint32_t lanes, std::uint64_t* addresses,
                    unsigned bytes, Use use, Resolved& resolved);
void resolve_generic(Warp& warp, const Ins& ins, std::uint32_t lanes, std::uint64_t* addresses,
                     unsigned bytes, Use use, Resolved& resolved);
void check_race(Warp& warp, unsigned lane, std::uint64_t offset, unsigned bytes, Use use);

/// Makes host addresses of them, or ends the kernel.
template <Space kSpace>
inline void resolve(Warp& warp, const Ins& ins, std::uint32_t lanes, std::uint64_t* addresses,
                    unsigned bytes, Use use, Resolved& resolved) {
  std::uint64_t low = addresses[0], high = addresses[0], all = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    low = low < addresses[i] ? low : addresses[i];
    high = high > addresses[i] ? high : addresses[i];
    all |= addresses[i];
  }
  if ((all & (bytes - 1)) != 0) misaligned(warp, lanes, addresses, bytes, use);
  Block& block = *warp.block;
  if constexpr (kSpace == Space::kGlobal) {
    const RangeCache& range = block.cache[(&ins - block.kernel->code.data()) % block.cache.size()];
    if (low < range.lo || high + bytes > range.hi)
      return resolve_slowly(warp, ins, lanes, addresses, bytes, use, resolved);
    for (unsigned i = 0; i < kLanes; ++i) addresses[i] += static_cast<std::uint64_t>(range.delta);
    resolved.shadow = range.shadow;
  } else if constexpr (kSpace == Space::kShared) {
    // cvta leaves what is an address of this space already.
    if (high + bytes > block.shared_bytes) {
      for (unsigned i = 0; i < kLanes; ++i)
        if (((lanes >> i) & 1) != 0 && addresses[i] + bytes > block.shared_bytes)
          bad_address(warp, i, addresses[i], bytes, use, "shared", block.shared_bytes);
    }
    if (settings().check_races)
      for (std::uint32_t left = lanes; left != 0; left &= left - 1)
        check_race(warp, first_lane(left), addresses[first_lane(left)], bytes, use);
    const auto base = reinterpret_cast<std::uint64_t>(block.shared.data());
    for (unsigned i = 0; i < kLanes; ++i) addresses[i] += base;
    resolved.shadow = block.shared_written.data() - block.shared.data();
    resolved.shared = true;
  } else if constexpr (kSpace == Space::kLocal) {
    const std::size_t room = block.kernel->local_bytes;
    if (high + bytes > room)
      for (unsigned i = 0; i < kLanes; ++i)
        if (((lanes >> i) & 1) != 0 && addresses[i] + bytes > room)
          bad_address(warp, i, addresses[i], bytes, use, "local", room);
    const auto base = reinterpret_cast<std::uint64_t>(block.local.data()) +
                      std::uint64_t{warp.index} * kLanes * room;
    for (unsigned i = 0; i < kLanes; ++i)
      addresses[i] += base + (((lanes >> i) & 1) != 0 ? i : first_lane(lanes)) * room;
    resolved.shadow = block.local_written.data() - block.local.data();
  } else if constexpr (kSpace == Space::kParam) {
    const std::vector<char>& params = block.launch->params;
    if (high + bytes > params.size())
      for (unsigned i = 0; i < kLanes; ++i)
        if (addresses[i] + bytes > params.size())
          bad_address(warp, i, addresses[i], bytes, use, "param", params.size());
    for (unsigned i = 0; i < kLanes; ++i)
      addresses[i] += reinterpret_cast<std::uint64_t>(params.data());
  } else {
    resolve_generic(warp, ins, lanes, addresses, bytes, use, resolved);
  }
}

void check_written(Warp& warp, const Ins& ins, std::uint32_t lanes, const std::uint64_t* addresses,
                   unsigned bytes, const Resolved& resolved);
void set_written(std::uint32_t lanes, const std::uint64_t* addresses, unsigned bytes,
                 const Resolved& resolved);

/// T: what lies in memory; R: the register, as wide or wider; kCount of them.
template <class T, class R, unsigned kCount, Space kSpace>
void load(Warp& warp, const Ins& ins, std::uint32_t lanes) {
  std::uint64_t addresses[kLanes];
  addresses_of(warp, ins, lanes, addresses);
  Resolved resolved;
  constexpr unsigned kBytes = sizeof(T) * kCount;
  resolve<kSpace>(warp, ins, lanes, addresses, kBytes, Use::kRead, resolved);
  if (settings().check_reads && kSpace != Space::kParam)
    check_written(warp, ins, lanes, addresses, kBytes, resolved);
  for (unsigned part = 0; part < kCount; ++part) {
    if (ins.v[part] == ~0u) continue;
    R* to = at<R>(warp, ins.v[part]);
    R values[kLanes];
    for (unsigned i = 0; i < kLanes; ++i) {
      T value;
      std::memcpy(&value, reinterpret_cast<const char*>(addresses[i]) + part * sizeof(T), sizeof(T));
      values[i] = static_cast<R>(value);
    }
    if (lanes == kAll) {
      for (unsigned i = 0; i < kLanes; ++i) to[i] = values[i];
    } else {
      for (unsigned i = 0; i < kLanes; ++i) to[i] = ((lanes >> i) & 1) != 0 ? values[i] : to[i];
    }
  }
}

template <class T, class R, unsigned kCount, Space kSpace>
void store(Warp& warp, const Ins& ins, std::uint32_t lanes) {
  std::uint64_t addresses[kLanes];
  addresses_of(warp, ins, lanes, addresses);
  Resolved resolved;
  constexpr unsigned kBytes = sizeof(T) * kCount;
  resolve<kSpace>(warp, ins, lanes, addresses, kBytes, Use::kWrite, resolved);
  for (unsigned part = 0; part < kCount; ++part) {
    const R* from = at<R>(warp, ins.v[part]);
    for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
      const unsigned i = first_lane(left);
      const T value = static_cast<T>(from[i]);
      std::memcpy(reinterpret_cast<char*>(addresses[i]) + part * sizeof(T), &value, sizeof(T));
    }
  }
  if (settings().check_reads) set_written(lanes, addresses, kBytes, resolved);
}

/// Op::f(old, b, c) is what then lies there.
template <class T, class Op, Space kSpace>
void atomic(Warp& warp, const Ins& ins, std::uint32_t lanes) {
  std::uint64_t addresses[kLanes];
  addresses_of(warp, ins, lanes, addresses);
  Resolved resolved;
  resolve<kSpace>(warp, ins, lanes, addresses, sizeof(T), Use::kAtomic, resolved);
  if (settings().check_reads) check_written(warp, ins, lanes, addresses, sizeof(T), resolved);
  const T* b = at<T>(warp, ins.b);
  const T* c = ins.has_c ? at<T>(warp, ins.c) : b;
  T* d = ins.d == ~0u ? nullptr : at<T>(warp, ins.d);
  const unsigned turn = static_cast<unsigned>(warp.block->draw() % kLanes);  // no order is promised
  for (unsigned n = 0; n < kLanes; ++n) {
    const unsigned i = (n + turn) % kLanes;
    if (((lanes >> i) & 1) == 0) continue;
    T* place = reinterpret_cast<T*>(addresses[i]);
    T before, after;
    __atomic_load(place, &before, __ATOMIC_RELAXED);
    do {
      after = Op::f(before, b[i], c[i]);
    } while (!__atomic_compare_exchange(place, &before, &after, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED));
    if (d != nullptr) d[i] = before;
  }
  if (settings().check_reads) set_written(lanes, addresses, sizeof(T), resolved);
}

}  // namespace ptx
