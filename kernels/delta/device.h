// Weight deltas on a device: checks, decodes and writes the blocks of a tensor. Work is queued on
// the stream. The caller has validated the frame of the delta and all pointers.
#pragma once

#include "kernels/delta/cpu.h"

#include <tersor/delta.h>
#include <tersor/stream.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The faults of a tensor's blocks. The largest fault is reported.
enum class DeltaFault : std::uint32_t { kNone, kCounts, kHead, kCodes, kPlaces, kSteps };

/// The sums of a tensor, in device memory, initially zeros. A checksum is low + 2^32 · high.
struct DeltaSums {
  std::uint64_t base_low, base_high;      // of the checksum of the values
  std::uint64_t change_low, change_high;  // of the change of the checksum
  std::uint64_t changed;                  // values
  std::uint64_t recorded;                 // values in `record_values`
  DeltaFault fault;
  std::uint32_t unused;
};

/// The changes of a block: `count` values from value `first` of the records on; or, if `count` is
/// kDeltaPlainRecord, a plain block at word `first` of the delta's blocks.
struct DeltaRecord {
  std::uint64_t first;
  std::uint32_t count;
  std::uint32_t unused;
};
constexpr std::uint32_t kDeltaPlainRecord = ~std::uint32_t{0};

/// A tensor of a delta. All pointers are to device memory.
struct DeltaDeviceTensor {
  DeltaDtype dtype;
  DeltaClasses classes;
  bool reads_base;  // true: computes the checksum of the values
  std::uint64_t count;
  std::byte* values;
  const std::uint16_t* sizes;   // of the delta's blocks
  const std::uint64_t* starts;  // of every 64th block
  std::uint32_t* blocks;        // the delta's blocks
  std::uint64_t max_recorded;   // values that fit into the records
  std::byte* record_values;     // decoded values; after an exchange, old values
  std::uint16_t* record_places;
  DeltaRecord* records;  // of each block
  DeltaSums* sums;
};

/// Decodes all blocks into the records and the sums. Does not write to the values.
void delta_device_decode(const DeltaDeviceTensor& tensor, StreamView stream);

/// Exchanges the changed values with the records and the plain blocks. If `restores`, copies old
/// values from there instead.
void delta_device_write(const DeltaDeviceTensor& tensor, bool restores, StreamView stream);

}  // namespace tersor::kernels
