#include "comm/transport/host/gate.h"

#include <algorithm>
#include <utility>

namespace tersor::host {

void Gate::unlock() {
  std::array<Bell*, kMostRings> rings;
  const auto end = std::copy_n(rings_.begin(), std::exchange(count_, 0), rings.begin());
  mutex_.unlock();
  std::for_each(rings.begin(), end, [](Bell* bell) { bell->ring(); });
}

Bell& Gate::take_bell() {
  if (free_bells_.empty()) return bells_.emplace_back();
  Bell& bell = *free_bells_.back();
  free_bells_.pop_back();
  return bell;
}

bool Gate::will_ring(const Bell& bell) const {
  const auto end = rings_.begin() + count_;
  return std::find(rings_.begin(), end, &bell) != end;
}

void Gate::ring(Bell& bell) {
  if (will_ring(bell)) return;
  if (count_ == kMostRings) return bell.ring();
  rings_[count_++] = &bell;
}

}  // namespace tersor::host
