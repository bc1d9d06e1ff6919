// A message damaged in transit, and then forwarded. Every error names the source of the damage, not
// the forwarding rank.
#include "comm/transport/forwarding.h"
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tersor::testing {
namespace {

/// Flips a bit in the first message of the exchange with number `exchange` (counted from 0). Sleeps
/// after every exchange, because the receiver of a damaged message must detect the damage before
/// the forwarding rank does.
class Flipping final : public ForwardingTransport {
 public:
  Flipping(Transport& transport, int exchange)
      : ForwardingTransport(std::shared_ptr<Transport>(std::shared_ptr<void>(), &transport)),
        left_(exchange) {}

  Handle exchange(const Operation& operation, std::span<const SendTo> sends,
                  std::span<const ReceiveFrom> receives) override {
    std::vector<SendTo> changed(sends.begin(), sends.end());
    if (left_-- == 0) {
      SendTo& first = changed.front();
      flipped_.assign(first.bytes.begin(), first.bytes.end());
      flipped_[flipped_.size() / 2] ^= std::byte{4};
      first.bytes = flipped_;
    }
    Handle handle = inner().exchange(operation, changed, receives);
    if (!sends.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return handle;
  }

 private:
  int left_;
  std::vector<std::byte> flipped_;
};

/// The errors of all ranks if `damager` sends a damaged message.
std::vector<std::string> errors_with_damage(int ranks, int damager, int exchange,
                                            const std::function<void(Transport&)>& call) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_ranks(ranks, {}, [&](Transport& transport) {
    Flipping flipping(transport, transport.rank() == damager ? exchange : -1);
    try {
      call(flipping);
      transport.barrier({.name = "meeting", .tag = transport.reserve_tags(1)}).wait_synchronize();
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(transport.rank())] = error.what();
    }
  });
  return errors;
}

void expect_named(const std::vector<std::string>& errors, int damager) {
  for (const std::string& error : errors)
    EXPECT_NE(error.find("the frame of rank " + std::to_string(damager)), std::string::npos)
        << error;
}

// Along the tree, and along the chain.
TEST(Damage, OfABroadcastIsNotPassedOn) {
  for (const std::size_t count : {std::size_t{1000}, std::size_t{100'000}})
    expect_named(errors_with_damage(5, 0, 0,
                                    [count](Transport& transport) {
                                      Values values(count, 1.0f);
                                      broadcast(transport, values);
                                    }),
                 0);
}

// The owner's sum in the second dimension, forwarded by its neighbor in the first dimension.
TEST(Damage, OnAGridIsNotPassedOn) {
  const int dims[] = {2, 2};
  expect_named(errors_with_damage(
                   4, 3, 2,
                   [&dims](Transport& transport) {
                     Values values(10'000, 1.0f);
                     allreduce(transport, values,
                               {.codec = "int8", .algorithm = Algorithm::kTwoShot, .dims = dims});
                   }),
               3);
}

}  // namespace
}  // namespace tersor::testing
