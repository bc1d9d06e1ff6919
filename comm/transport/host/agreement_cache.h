// The agreements behind the last signatures of a channel.
#pragma once

#include <tersor/agreement.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tersor::host {

/// Direct-mapped by signature: a later signature may replace an earlier one.
class AgreementCache {
 public:
  void insert(std::uint64_t signature, const std::shared_ptr<const Agreement>& agreement) {
    Entry& entry = entries_[signature % kEntries];
    if (entry.signature == signature && entry.agreement != nullptr) return;
    if (agreement != nullptr) entry = {signature, agreement};
  }
  /// Null if the agreement was replaced, or if a call passed none.
  const Agreement* find(std::uint64_t signature) const {
    const Entry& entry = entries_[signature % kEntries];
    return entry.signature == signature ? entry.agreement.get() : nullptr;
  }

 private:
  struct Entry {
    std::uint64_t signature = 0;
    std::shared_ptr<const Agreement> agreement = {};
  };
  static constexpr std::size_t kEntries = 64;

  std::array<Entry, kEntries> entries_;
};

}  // namespace tersor::host
