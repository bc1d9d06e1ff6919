// `tersor-bench codecs --operation error`: the loss of codecs on tensors, and the bits per value.
#pragma once

#include <string_view>

#include "bench/codecs_options.h"
#include "bench/records.h"
#include "bench/samples.h"

namespace tersor::bench {

inline constexpr std::string_view kErrorOperation = "error";

/// True if the operation is requested, or if the data are several tensors of a file.
bool wants_errors(const CodecsOptions& options);

/// Prints and records each codec on each tensor.
void measure_errors(const CodecsOptions& options, const SampleSource& source, RecordFile& records);

}  // namespace tersor::bench
