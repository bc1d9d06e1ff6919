// See late_stores.h.
#include "tests/ptx_device/machine/late_stores.h"

#include "tests/ptx_device/machine/machine.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

namespace ptx {
namespace {

constexpr std::size_t kMostLines = 1 << 16;

/// True if a thread of `by` stored the byte.
bool is_by(const Storing& by, std::uint16_t thread) {
  return thread / kLanes == by.warp && contains(by.lanes, thread % kLanes);
}

/// Writes an aligned value without tearing. Returns false if the mask does not cover the whole
/// value.
template <class T>
bool write_value(std::uint64_t address, const unsigned char* bytes, std::uint32_t& mask,
                 unsigned at) {
  const std::uint32_t all = ((1u << sizeof(T)) - 1) << at;
  if (at % sizeof(T) != 0 || (mask & all) != all) return false;
  T value;
  std::memcpy(&value, bytes + at, sizeof(T));
  __atomic_store_n(reinterpret_cast<T*>(address + at), value, __ATOMIC_RELAXED);
  mask &= ~all;
  return true;
}

}  // namespace

bool LateStores::draw() {
  random_ = mix(random_, lines_.size());
  return ((random_ >> 20) & 1) != 0;
}

LateStores::Lines::iterator LateStores::find(std::uint64_t block, std::uint64_t address) {
  const auto [first, last] = lines_.equal_range(address);
  const auto found =
      std::find_if(first, last, [&](const auto& line) { return line.second.block == block; });
  return found == last ? lines_.end() : found;
}

void LateStores::write(Line& line, std::uint32_t mask) {
  mask &= line.mask;
  line.mask &= ~mask;
  if (mask == 0xffff) {
    _mm_store_si128(reinterpret_cast<__m128i*>(line.address),
                    _mm_load_si128(reinterpret_cast<const __m128i*>(line.bytes)));
    return;
  }
  for (unsigned at = 0; at < kBytes; ++at) {
    if (!contains(mask, at)) continue;
    write_value<std::uint64_t>(line.address, line.bytes, mask, at) ||
        write_value<std::uint32_t>(line.address, line.bytes, mask, at) ||
        write_value<std::uint16_t>(line.address, line.bytes, mask, at) ||
        write_value<std::uint8_t>(line.address, line.bytes, mask, at);
  }
}

void LateStores::put(const Storing& by, std::uint64_t address, const unsigned char* bytes,
                     unsigned count) {
  const std::lock_guard lock(mutex_);
  const auto thread = static_cast<std::uint16_t>(by.warp * kLanes + first_lane(by.lanes));
  for (unsigned i = 0; i < count; ++i) {
    const std::uint64_t begin = (address + i) / kBytes * kBytes;
    auto found = find(by.block, begin);
    if (found == lines_.end()) {
      found = lines_.emplace(begin, Line{by.block, begin, 0, {}, {}, {}});
      addresses_[by.block].push_back(begin);
    }
    Line& line = found->second;
    const unsigned at = (address + i) % kBytes;
    line.mask |= 1u << at;
    line.bytes[at] = bytes[i];
    line.threads[at] = thread;
    line.phases[at] = by.phase;
  }
}

std::uint64_t LateStores::look(std::uint64_t block, std::uint64_t address, unsigned count,
                               Seen& seen) {
  const std::lock_guard lock(mutex_);
  std::uint64_t other = kNoBlock;
  for (unsigned i = 0; i < count; ++i) {
    const unsigned at = (address + i) % kBytes;
    const auto [first, last] = lines_.equal_range(address + i - at);
    for (auto line = first; line != last; ++line) {
      if (!contains(line->second.mask, at)) continue;
      if (line->second.block != block) {
        other = line->second.block;
        continue;
      }
      seen.mask |= 1u << i;
      seen.bytes[i] = line->second.bytes[at];
    }
  }
  return other;
}

/// Changes the lines of a block and removes empty lines.
template <class F>
void LateStores::for_lines_of(std::uint64_t block, F change) {
  const auto known = addresses_.find(block);
  if (known == addresses_.end()) return;
  std::vector<std::uint64_t>& addresses = known->second;
  std::size_t kept = 0;
  for (const std::uint64_t address : addresses) {
    const auto found = find(block, address);
    if (found == lines_.end()) continue;
    change(found->second);
    if (found->second.mask == 0)
      lines_.erase(found);
    else
      addresses[kept++] = address;
  }
  addresses.resize(kept);
}

void LateStores::fence(const Storing& by) {
  const std::lock_guard lock(mutex_);
  for_lines_of(by.block, [&](Line& line) {
    std::uint32_t mask = 0;
    for (unsigned at = 0; at < kBytes; ++at)
      if (line.phases[at] < by.phase || is_by(by, line.threads[at])) mask |= 1u << at;
    write(line, mask);
  });
}

void LateStores::order(const Storing& by) {
  const std::lock_guard lock(mutex_);
  for_lines_of(by.block, [&](Line& line) {
    for (unsigned at = 0; at < kBytes; ++at)
      if (is_by(by, line.threads[at])) line.phases[at] = kOrdered;
  });
}

void LateStores::let_go(std::uint64_t block, std::uint64_t address, unsigned count) {
  const std::lock_guard lock(mutex_);
  for (unsigned i = 0; i < count; ++i) {
    const unsigned at = (address + i) % kBytes;
    const auto found = find(block, address + i - at);
    if (found != lines_.end()) write(found->second, ((1u << count) - 1) << at);
  }
}

void LateStores::let_some_go() {
  const std::lock_guard lock(mutex_);
  const bool all = lines_.size() > kMostLines;
  for (auto& [block, addresses] : addresses_)
    for_lines_of(block, [&](Line& line) {
      if (all || draw()) write(line, line.mask);
    });
}

void LateStores::let_all_go() {
  const std::lock_guard lock(mutex_);
  for (auto& [address, line] : lines_) write(line, line.mask);
  lines_.clear();
  addresses_.clear();
}

}  // namespace ptx
