// Output at the end of the program: a table of kernels (if requested), and the number of
// complaints.
#include "tests/ptx_device/runtime/modules.h"

#include <algorithm>
#include <cstdio>

namespace ptx {
namespace {

void say(const Entry& entry) {
  const Runs& runs = entry.runs;
  const double executed = static_cast<double>(std::max<std::uint64_t>(runs.executed, 1));
  std::fprintf(stderr, "ptx-device: %7.3f %8llu %12.3f %11.1f %s\n", runs.seconds,
               static_cast<unsigned long long>(runs.launches), 1e-6 * executed,
               static_cast<double>(runs.executed_lanes) / executed, entry.kernel->name.c_str());
}

void say_kernels() {
  std::vector<Entry*> launched = all_entries();
  const std::size_t known = launched.size();
  std::erase_if(launched, [](const Entry* entry) { return entry->runs.launches == 0; });
  std::sort(launched.begin(), launched.end(),
            [](const Entry* a, const Entry* b) { return a->runs.seconds > b->runs.seconds; });
  std::fprintf(stderr, "ptx-device: seconds launches Minstr(warp) lanes/instr kernel\n");
  for (const Entry* entry : launched) say(*entry);
  std::fprintf(stderr, "ptx-device: %zu of %zu kernels were launched\n", launched.size(), known);
}

struct AtExit {
  ~AtExit() {
    if (settings().statistics) say_kernels();
    if (complaints() != 0)
      std::fprintf(stderr, "ptx-device: %zu complaints (see above)\n", complaints());
  }
} at_exit;

}  // namespace
}  // namespace ptx
