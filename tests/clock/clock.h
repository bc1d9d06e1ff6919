// A clock of the tests' own, on which ranks that are threads compute in no time: it stands still
// while one of them runs, and goes on to the next moment at which one wakes as soon as all wait.
// What ranks wait for then takes exactly what it should, however busy the machine is.
#pragma once

#include <tersor/inprocess.h>
#include <tersor/transport.h>

#include <functional>

namespace tersor::test {

/// `run_ranks` on that clock. Bodies wait for messages or by `pass`, and in no other way.
void run_on_clock(int ranks, const Link& link, const std::function<void(Transport&)>& body);

/// The calling rank computes for so long.
void pass(Clock::duration time);

/// Seconds since an earlier moment.
double seconds_since(Clock::time_point start);

}  // namespace tersor::test
