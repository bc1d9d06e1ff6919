// A rank that is alone in its process: it meets the others, and gathers from them, by messages of
// its own transport.
#pragma once

#include <memory>

#include "bench/fleet.h"

namespace tersor::bench {

class ProcessRank : public Rank {
 public:
  /// Splits two channels off: for what is measured, and for meetings.
  explicit ProcessRank(Transport& transport)
      : transport_(transport.channel()), control_(transport.channel()) {}

  Transport& transport() override { return *transport_; }
  bool stores() override { return true; }
  void meet() override;
  std::vector<std::vector<std::byte>> gather_bytes(ConstByteSpan own) override;
  /// Throws InvalidArgument: there is no library below that sums.
  void library_sum(ValueSpan values, StreamView stream) override;

 private:
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Transport> control_;
};

/// Runs the body on this process's rank, and tells the others where it throws.
void run_rank(Transport& transport, Rank& rank, const std::function<void(Rank&)>& body);

/// Rank 0 alone prints. Throws Error where that cannot be.
void silence_unless(bool leads);

}  // namespace tersor::bench
