// Implements gate.h.
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

void Gate::ring(Bell& bell) {
  const auto end = rings_.begin() + count_;
  if (std::find(rings_.begin(), end, &bell) != end) return;
  if (count_ == kMostRings) return bell.ring();
  rings_[count_++] = &bell;
}

}  // namespace tersor::host
