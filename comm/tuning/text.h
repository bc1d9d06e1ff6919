// Formats figures for `explain`.
#pragma once

#include <string>

namespace tersor {

/// "850 ns", "12.3 us", "1.23 ms", "4.56 s".
std::string seconds_text(double seconds);
/// "940 Mbit/s", "8.10 Gbit/s"; "no limit" for 0 seconds per byte.
std::string rate_text(double seconds_per_byte);
/// "34 %"
std::string percent_text(double fraction);

}  // namespace tersor
