// What codecs lose of tensors, and at how many bits a value: `tersor-bench codecs --operation
// error`.
#pragma once

#include <string_view>

#include "bench/codecs_options.h"
#include "bench/records.h"
#include "bench/samples.h"

namespace tersor::bench {

inline constexpr std::string_view kErrorOperation = "error";

/// Whether it is asked for, or the data are tensors of which each is to be looked at.
bool wants_errors(const CodecsOptions& options);

/// Each codec on each tensor: a row and a record.
void measure_errors(const CodecsOptions& options, const SampleSource& source, RecordFile& records);

}  // namespace tersor::bench
