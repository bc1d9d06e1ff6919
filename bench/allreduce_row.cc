// See allreduce_row.h.

#include "bench/allreduce_row.h"

#include <algorithm>

namespace tersor::bench {

double AllreduceRow::hidden() const {
  const double wire = result.wire_seconds;
  return wire > 0 ? std::clamp(1 - result.part_seconds / wire, 0.0, 1.0) : 0.0;
}

Record record_of(const AllreduceRow& row, std::string_view transport, std::string_view link) {
  Record record = {{"benchmark", "allreduce"}};
  if (!row.collective.empty()) record["collective"] = row.collective;
  record["codec"] = row.codec;
  record["algorithm"] = row.algorithm();
  if (!row.collective.empty()) record["dims"] = row.dims;
  record.update(Record{{"transport", transport},
                       {"link", link},
                       {"ranks", row.ranks},
                       {"dtype", dtype_name(row.dtype)},
                       {"count", row.count},
                       {"seconds", row.result.seconds},
                       {"algbw", row.algbw()},
                       {"busbw", row.busbw()},
                       {"wire_bytes", row.result.wire_bytes},
                       {"relative_error", row.result.relative_error},
                       {"identical", true}});
  return record;
}

}  // namespace tersor::bench
