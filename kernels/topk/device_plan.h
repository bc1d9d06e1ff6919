// Device top-k: how a segment is divided, the state passed between kernels, and the layout of the
// workspace. Plain C++. Private to kernels/topk and its tests.
#pragma once

#include "kernels/topk/formulas.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The number of values processed at a time by a block (in the scan) or by a warp (in count and
/// emit), in ascending order of index. A payload tile holds a whole number of parts.
constexpr std::size_t kTopkPart = 4096;
static_assert(kTopkTile % kTopkPart == 0);

constexpr unsigned kTopkThreads = 256;

/// Histogram bins of keys. The sample uses bins of 1/8 octave, and 4096 fine bins within one coarse
/// bin. The scan's window starts one octave below the threshold and ends three octaves above. The
/// digits of a key have 12, 13 and 6 bits. The 13 bits are also the digits of a key within a bin of
/// the window.
constexpr unsigned kTopkCoarseBins = 2048, kTopkCoarseShift = 20;
constexpr unsigned kTopkFineBins = 4096, kTopkFineShift = 8;
constexpr unsigned kTopkWindowBins = 4096, kTopkWindowShift = 13;
constexpr std::uint32_t kTopkOctave = 1u << 23;
constexpr unsigned kTopkDigits = 3, kTopkFirstShift = 19;
constexpr unsigned kTopkDigitBins[kTopkDigits] = {4096, 8192, 64};
constexpr unsigned kTopkDigitShift[kTopkDigits] = {kTopkFirstShift, 6, 0};
constexpr unsigned kTopkDigitBin[kTopkDigits] = {0, 4096, 4096 + 8192};  // offsets in `digit`
static_assert(kTopkDigitBins[1] == 1u << kTopkWindowShift);

/// A path of devices only: the segment was not active.
constexpr std::uint32_t kTopkInactive = 4;

/// A value of `shift`: the k-th key is known.
constexpr std::uint32_t kTopkDone = 32;

/// A value of `ties`: all ties are sent.
constexpr std::uint32_t kTopkAllTies = 0xffffffffu;

/// State passed from launch to launch, zeroed before the first launch. The last block of a launch
/// writes the results of all blocks' counts.
struct TopkControl {
  enum Ticket { kSampled, kScanned, kNarrowed, kSent = kNarrowed + kTopkDigits, kTickets };

  std::uint32_t path;        // a TopkPath or kTopkInactive
  std::uint32_t threshold;   // keys from here on are candidates
  std::uint32_t low;         // start of the window
  std::uint32_t base;        // the k-th key is in [base, base + (bins << shift))
  std::uint32_t shift;       // of the next digit, or kTopkDone
  std::uint32_t key;         // the k-th key; all larger keys are sent
  std::uint32_t ties;        // number of sent values with this key
  std::uint32_t selected;    // number of sent values
  std::uint64_t rank;        // of the k-th key among the keys from `base` on
  std::uint64_t listed;      // candidates in the list
  std::uint64_t found;       // keys that reach the scan's threshold
  std::uint64_t gathered;    // keys that reach the second threshold
  std::uint64_t non_finite;  // keys that reach the limit
  std::uint32_t ticket[kTickets + kTickets % 2];
  alignas(16) std::uint64_t coarse[kTopkCoarseBins];
  alignas(16) std::uint64_t window[kTopkWindowBins];
  alignas(16) std::uint64_t digit[kTopkDigitBin[2] + kTopkDigitBins[2]];
};

/// A candidate: p, and the index within the part.
struct alignas(8) TopkCandidate {
  float value;
  std::uint32_t index;
};

/// The state of one part of 4,096 values.
struct alignas(16) TopkPartRun {
  std::uint32_t base;   // list position of the first candidate; the others follow in order of index
  std::uint16_t count;  // number of candidates; 0 if the list had no space
  std::uint16_t restored;  // 1: had non-finite values, and its residuals were restored
  std::uint32_t larger;    // keys above the k-th: in the part, later in the block's earlier parts
  std::uint32_t equal;     // keys equal to the k-th, counted like `larger`
};

/// Maximum number of blocks that send values.
constexpr std::size_t kTopkMaxBlocks = 4096;

struct TopkDevicePlan {
  std::size_t count;
  std::uint32_t k;
  std::uint32_t capacity;  // size of the candidate list
  std::size_t parts;
  std::size_t samples;  // a multiple of the widest row; if at least `count`, all values are sampled
  std::uint32_t rank;   // of the threshold in the sample

  TERSOR_BODY bool samples_all() const { return samples >= count; }
};

/// Addresses of the workspace's parts, all 64-byte aligned if the workspace is.
struct TopkDeviceMemory {
  TopkControl* control;
  std::uint64_t* counts;      // [kTopkMaxBlocks] or fewer, zeroed with `control`: keys per block
  TopkPartRun* runs;          // [parts]
  TopkCandidate* candidates;  // [capacity]
  float* samples;             // [samples]
  float* chosen;              // [k], p of the sent values; used only for int8 values
};

/// Does not throw. `count` and `k` are at least 1.
TopkDevicePlan topk_device_plan(std::size_t count, std::size_t k,
                                TopkForce force = TopkForce::kNothing);

/// Divides a workspace. Sets `bytes` to the required size, whatever `workspace` is.
TopkDeviceMemory topk_device_memory(const TopkDevicePlan& plan, std::byte* workspace,
                                    std::size_t& bytes);

}  // namespace tersor::kernels
