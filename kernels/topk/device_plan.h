// Top-k on a device: how a segment is cut up, what its kernels tell each other, and where each part
// of the workspace lies. Plain C++; inside kernels/topk and its tests only.
#pragma once

#include "kernels/topk/formulas.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Values that a block (in the scan) or a warp (where the chosen are counted and sent) takes at a
/// time, in ascending order of index; a tile of the payload holds a whole number of them.
constexpr std::size_t kTopkPart = 4096;
static_assert(kTopkTile % kTopkPart == 0);

constexpr unsigned kTopkThreads = 256;

/// Bins of keys. The sample: 1/8 octave, and within one of them 1/4096 of that. The window of the
/// scan: from an octave below the threshold to three above. Digits of the key: 12, 13 and 6 bits;
/// the 13 are also those of a key within a bin of the window.
constexpr unsigned kTopkCoarseBins = 2048, kTopkCoarseShift = 20;
constexpr unsigned kTopkFineBins = 4096, kTopkFineShift = 8;
constexpr unsigned kTopkWindowBins = 4096, kTopkWindowShift = 13;
constexpr std::uint32_t kTopkOctave = 1u << 23;
constexpr unsigned kTopkDigits = 3, kTopkFirstShift = 19;
constexpr unsigned kTopkDigitBins[kTopkDigits] = {4096, 8192, 64};
constexpr unsigned kTopkDigitShift[kTopkDigits] = {kTopkFirstShift, 6, 0};
constexpr unsigned kTopkDigitBin[kTopkDigits] = {0, 4096, 4096 + 8192};  // of `digit` below
static_assert(kTopkDigitBins[1] == 1u << kTopkWindowShift);

/// A path of the device alone: the segment was not active.
constexpr std::uint32_t kTopkIdle = 4;

/// In place of a shift: the k-th key is known.
constexpr std::uint32_t kTopkDone = 32;

/// In place of ties to send: all.
constexpr std::uint32_t kTopkAllTies = 0xffffffffu;

/// What one launch leaves for the next; all zeros before the first one. The last block of a launch
/// writes what the others have counted.
struct TopkControl {
  enum Ticket { kSampled, kScanned, kNarrowed, kCounted = kNarrowed + kTopkDigits, kTickets };

  std::uint32_t path;       // a TopkPath, or kTopkIdle
  std::uint32_t threshold;  // from here keys are candidates
  std::uint32_t low;        // where the window begins
  std::uint32_t base;       // the k-th key is in [base, base + (bins << shift))
  std::uint32_t shift;      // of the next digit, or kTopkDone
  std::uint32_t key;        // the k-th key; larger ones are all sent
  std::uint32_t ties;       // how many that equal it
  std::uint32_t kept;       // values that are sent
  std::uint64_t rank;       // of the k-th key among those from `base` on
  std::uint64_t listed;     // candidates in the list
  std::uint64_t found;      // keys that reach the scan's threshold
  std::uint64_t gathered;   // keys that reach the second one
  std::uint64_t poisonous;  // keys from the limit on
  std::uint32_t ticket[kTickets + kTickets % 2];
  std::uint64_t coarse[kTopkCoarseBins];
  std::uint64_t window[kTopkWindowBins];
  std::uint64_t digit[kTopkDigitBin[2] + kTopkDigitBins[2]];
};

/// A value that may be sent: p, and where in its part it lies.
struct alignas(8) TopkCandidate {
  float value;
  std::uint32_t index;
};

/// What is known of a part of 4,096 values.
struct alignas(16) TopkPartRun {
  std::uint32_t base;    // its first candidate in the list; the others follow, in order of index
  std::uint16_t count;   // how many; 0 where they found no room
  std::uint16_t undone;  // 1: it held poison, and its residuals have their old values again
  std::uint32_t larger;  // keys above the k-th: in the part, then before it in the parts of a block
  std::uint32_t equal;   // keys that equal it, likewise
};

/// Keys of all parts before those that one block counted.
struct alignas(16) TopkBlockBase {
  std::uint64_t larger;
  std::uint64_t equal;
};

/// Blocks that count the chosen, at most.
constexpr std::size_t kTopkMostBlocks = 4096;

struct TopkDevicePlan {
  std::size_t count;
  std::uint32_t k;
  std::uint32_t capacity;  // candidates that the list takes
  std::size_t parts;
  std::size_t samples;  // a multiple of the widest row; `count` or more: all values are
  std::uint32_t rank;   // in the sample, of the threshold

  TERSOR_BODY bool samples_all() const { return samples >= count; }
};

/// Where the parts of the workspace lie; all 64-byte aligned where the workspace is.
struct TopkDeviceMemory {
  TopkControl* control;
  TopkBlockBase* bases;       // [kTopkMostBlocks] or fewer
  TopkPartRun* runs;          // [parts]
  TopkCandidate* candidates;  // [capacity]
  float* samples;             // [samples]
  float* chosen;              // [k], p of what is sent; only where values are int8
};

/// Throws nothing; count and k are at least 1.
TopkDevicePlan topk_device_plan(std::size_t count, std::size_t k,
                                TopkForce force = TopkForce::kNothing);

/// Cuts a workspace up; `bytes` becomes how many it needs, whatever `workspace` is.
TopkDeviceMemory topk_device_memory(const TopkDevicePlan& plan, std::byte* workspace,
                                    std::size_t& bytes);

}  // namespace tersor::kernels
