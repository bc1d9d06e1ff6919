// A virtual clock for ranks on threads. Computation takes no time: the clock stands still while any
// rank runs. If all ranks wait, the clock advances to the next wake-up time. Waits therefore take
// exactly the expected time, even on a busy machine.
#pragma once

#include <tersor/inprocess.h>
#include <tersor/transport.h>

#include <functional>

namespace tersor::test {

/// `run_ranks` in virtual time. Bodies may wait only for messages or by `pass`.
void run_on_clock(int ranks, const Link& link, const std::function<void(Transport&)>& body);

/// Simulates computation of duration `time` on the calling rank.
void pass(Clock::duration time);

/// Seconds since `start`.
double seconds_since(Clock::time_point start);

}  // namespace tersor::test
