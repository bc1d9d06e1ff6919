// The conformance suites on a wire with late messages. The receiver reads a long message from the
// sender's memory only when the receive is posted.
#include <chrono>

#include "tests/transport/calls.h"
#include "tests/transport/late_wire.h"
#include "tests/transport/rank.h"

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Late, TransportConformance, ::testing::Values(late_fabric()), fabric_name);
INSTANTIATE_TEST_SUITE_P(Late, TransportExchange, ::testing::Values(late_fabric()), fabric_name);

// All expected messages have arrived, but rank 1 does not receive the sent message.
TEST(UnreadExchange, ReportsMissingReceiver) {
  const auto errors = errors_of(late_fabric(), 3, [](Transport& transport) {
    const auto own = std::make_shared<std::vector<std::byte>>(pattern(1000, transport.rank(), 0));
    const SendTo to_middle{0, *own}, to_idle{1, *own};
    const ReceiveFrom from{2, 1000};
    const Operation operation{
        .name = "step", .timeout = std::chrono::milliseconds(200), .keep_alive = own};
    if (transport.rank() == 0)
      transport.exchange(operation, {&to_idle, 1}, {&from, 1}).wait_synchronize();
    if (transport.rank() == 2)
      transport.exchange(operation, {&to_middle, 1}, {}).wait_synchronize();
  });
  EXPECT_TRUE(says(errors[0], "step on rank 0: no message from rank 1 within 200 ms"));
}

}  // namespace
}  // namespace tersor::test
