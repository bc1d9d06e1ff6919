// Updates residuals of single values: restores wrongly cleared values, subtracts sent values, and
// reverts a poisoned step. Private to kernels/topk.
#pragma once

#include "kernels/topk/cpu.h"
#include "kernels/topk/cpu_plan.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// kRestore: residual_out = p. kClear: residual_out = the remainder of p after sending
/// (TopkScan::clear).
enum class TopkCorrection { kRestore, kClear };
void topk_correct(const TopkScan& scan, TopkCorrection correction, std::size_t tile,
                  const TopkRunView& run);

/// Corrects many values. The cache lines of one batch are prefetched while the previous batch is
/// written.
class TopkCorrections {
 public:
  TopkCorrections(const TopkScan& scan, TopkCorrection correction, TopkScratch& scratch)
      : scan_(scan), correction_(correction), scratch_(scratch) {}
  ~TopkCorrections() { write(); }
  TopkCorrections(const TopkCorrections&) = delete;
  TopkCorrections& operator=(const TopkCorrections&) = delete;

  /// Adds the candidates of a piece of a tile (for_each_piece) if their keys are in the range.
  void add(std::size_t tile, const TopkRunView& piece, TopkKeys keys);

 private:
  void write();

  const TopkScan& scan_;
  TopkCorrection correction_;
  TopkScratch& scratch_;
  std::size_t buffer_ = 0;
  std::size_t tile_ = 0;
  TopkRunView pending_{};
};

/// Sets residual_out = p - decoded at the selected values [begin, end), all in tile `tile`. The
/// array `chosen` holds p of the selected values at the same positions.
struct TopkRemainders {
  const TopkEncode& task;
  const float* chosen;
  std::size_t begin;
  std::size_t end;
};
void topk_store_remainders(const TopkRemainders& remainders, std::size_t tile);

/// Restores the old residual of a strip whose in-place f32 residual holds p. Non-finite values
/// already hold the old residual. The parameter `candidates` lists the strip's candidates,
/// including all non-finite values. If `write_back` is kYes, the p of each finite candidate is
/// written back first.
enum class TopkWriteBack : std::uint8_t { kNo, kYes };
void topk_restore_strip(const TopkScan& scan, TopkStrip strip, const TopkRunView& candidates,
                        TopkWriteBack write_back);

/// Copies a range of the old residual to the new residual.
void topk_copy_residual(const ErrorFeedback& feedback, std::size_t begin, std::size_t end);

}  // namespace tersor::kernels
