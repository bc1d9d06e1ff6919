// Writes residuals of single values: what was wrongly taken away is put back, what was sent is
// taken away, and a poisoned step is undone. Inside kernels/topk only.
#pragma once

#include "kernels/topk/cpu.h"
#include "kernels/topk/cpu_plan.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// residual_out = p, or what remains of p when it is sent (TopkScan::clear).
enum class TopkCorrection { kPut, kTake };
void topk_correct(const TopkScan& scan, TopkCorrection correction, std::size_t tile,
                  const TopkRunView& run);

/// Corrects many places; lines of one batch are fetched while the one before is written.
class TopkCorrections {
 public:
  TopkCorrections(const TopkScan& scan, TopkCorrection correction, TopkScratch& scratch)
      : scan_(scan), correction_(correction), scratch_(scratch) {}
  ~TopkCorrections() { write(); }
  TopkCorrections(const TopkCorrections&) = delete;
  TopkCorrections& operator=(const TopkCorrections&) = delete;

  /// The candidates of a piece (for_each_piece) of a tile whose keys are in the range.
  void add(std::size_t tile, const TopkRunView& piece, TopkKeys keys);

 private:
  void write();

  const TopkScan& scan_;
  TopkCorrection correction_;
  TopkScratch& scratch_;
  std::size_t buffer_ = 0;
  std::size_t tile_ = 0;
  TopkRunView waiting_{};
};

/// residual_out = p - decoded at the chosen values [begin, end), all in tile `tile`; `chosen` are
/// their p, at places [begin, end).
struct TopkSettle {
  const TopkEncode& task;
  const float* chosen;
  std::size_t begin;
  std::size_t end;
};
void topk_settle(const TopkSettle& settle, std::size_t tile);

/// Brings back the old values of a strip whose f32 residual, in place, holds p: everywhere but at
/// values that are not finite, where it is the old one already. `candidates` are the strip's, all
/// that are not finite among them; `put` says whether their p must be put back first.
enum class TopkPut : std::uint8_t { kNo, kYes };
void topk_undo_strip(const TopkScan& scan, TopkStrip strip, const TopkRunView& candidates,
                     TopkPut put);

/// Copies the old residual of a range of values to the new one.
void topk_copy_residual(const ErrorFeedback& feedback, std::size_t begin, std::size_t end);

}  // namespace tersor::kernels
