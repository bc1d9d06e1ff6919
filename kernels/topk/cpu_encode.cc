// Top-k with error feedback on the CPU. A sample gives a threshold almost surely a little below the
// k-th key. One pass computes p, writes the residual and stores the candidates at or above the
// threshold. The encoder finds the k-th key among the candidates and sends all values with larger
// keys, and as many values with an equal key as needed.
//
// The pass assumes that a candidate above the guess will be sent and leaves the remainder in the
// residual. The encoder later restores the residuals of rejected candidates. If the threshold
// missed, the residuals of all candidates are restored, and p is read back from the residual (f32)
// or computed again. A second pass writes the residual if the residual does not hold p exactly, or
// if the old residual cannot be recovered from p. Long because the four ways to find the set share
// one state.
#include "kernels/cast/formats.h"
#include "kernels/cast/kernels.h"
#include "kernels/quantize/int8.h"
#include "kernels/quantize/kernels.h"
#include "kernels/topk/cpu.h"
#include "kernels/topk/cpu_residual.h"
#include "kernels/topk/cpu_sample.h"
#include "kernels/topk/cpu_select.h"

#include <tersor/align.h>
#include <tersor/error.h>

#include <algorithm>
#include <string>

namespace tersor::kernels {
namespace {

constexpr std::uint32_t kEndKey = 0x80000000u;
constexpr std::uint32_t kPartialTies = 0xffffffffu;  // no key

struct TileRange {
  std::size_t begin;
  std::size_t end;
};

/// The selection: all keys above `key`, and the first `ties` keys equal to `key`.
struct Cutoff {
  std::uint32_t key;
  std::size_t ties;
};

TopkWorkspace allocate_workspace(const TopkPlan& plan, std::span<std::byte> memory) {
  std::size_t bytes = 0;
  auto* aligned = reinterpret_cast<std::byte*>(
      align_up(reinterpret_cast<std::uintptr_t>(memory.data()), alignof(TopkScratch)));
  const TopkWorkspace workspace = topk_workspace(plan, aligned, bytes);
  const std::size_t padding = static_cast<std::size_t>(aligned - memory.data());
  if (padding + bytes > memory.size())
    throw InvalidArgumentError("top-k needs " + std::to_string(padding + bytes) +
                               " bytes of workspace, not " + std::to_string(memory.size()) +
                               "; see topk_workspace_bytes");
  return workspace;
}

class Encoder {
 public:
  Encoder(const TopkEncode& task, Threads& threads)
      : task_(task),
        payload_(task.payload),
        threads_(threads),
        plan_(topk_plan(task.count, task.k, threads.count())),
        workspace_(allocate_workspace(plan_, task.workspace)),
        list_(plan_, workspace_),
        writes_(writes_of(task)),
        scan_{.gradient = task.gradient,
              .dtype = task.dtype,
              .feedback = task.feedback,
              .thresholds = {},
              .limit = topk_limit(task.value_dtype, task.feedback.residual_in != nullptr
                                                        ? task.feedback.dtype
                                                        : Dtype::kF32),
              .clear = clear_of()},
        source_{plan_, workspace_},
        sample_(scan_, plan_, workspace_, threads),
        chosen_(task.value_dtype == Dtype::kF32 ? static_cast<float*>(task.payload.values)
                                                : workspace_.chosen) {
    if (writes_ != Writes::kDuringScan) scan_.feedback.residual_out = nullptr;
    reread_ = rereading();
  }

  TopkResult run() {
    scan_.thresholds = sample_.thresholds(topk_rank_scale(task_.force));
    const TopkKeyCounts key_counts = scan(scan_);
    if (key_counts.non_finite != 0) return poison(key_counts.non_finite);
    const Cutoff cutoff = select(key_counts);
    count_tiles(cutoff.key);
    compute_tile_offsets(cutoff);
    emit(cutoff);
    fill_unused();
    encode_values();
    write_residual();
    return {payload_.first[plan_.tiles], path_, 0};
  }

 private:
  enum class Writes { kNever, kDuringScan, kAfterScan };

  static Writes writes_of(const TopkEncode& task) {
    const ErrorFeedback& feedback = task.feedback;
    if (feedback.residual_in == nullptr) return Writes::kNever;
    if (feedback.residual_in != feedback.residual_out) return Writes::kDuringScan;
    const bool can_restore = feedback.dtype == Dtype::kF32 && feedback.residual_factor != 0;
    return can_restore ? Writes::kDuringScan : Writes::kAfterScan;
  }

  TopkClear clear_of() const {
    if (writes_ != Writes::kDuringScan) return TopkClear::kNothing;
    if (task_.value_dtype == Dtype::kF32) return TopkClear::kFull;
    return task_.value_dtype == Dtype::kBf16 ? TopkClear::kBf16 : TopkClear::kNothing;
  }

  /// Returns a scan that reads p again and writes nothing.
  TopkScan rereading() const {
    TopkScan reread = scan_;
    reread.clear = TopkClear::kNothing;
    reread.feedback.residual_out = nullptr;
    if (writes_ == Writes::kDuringScan && task_.feedback.dtype == Dtype::kF32) {
      reread.gradient = task_.feedback.residual_out;
      reread.dtype = Dtype::kF32;
      reread.feedback.residual_in = nullptr;
    }
    return reread;
  }

  /// Calls visitor(tiles, scratch) for each task, in parallel.
  template <typename Visitor>
  void for_each_task(Visitor&& visitor) {
    threads_.run(plan_.tasks, [&](std::size_t task) {
      visitor(TileRange{plan_.tiles_before(task), plan_.tiles_before(task + 1)},
              workspace_.scratch[task]);
    });
  }

  /// Calls visitor(tile, scratch) for each tile, in parallel.
  template <typename Visitor>
  void for_each_tile(Visitor&& visitor) {
    for_each_task([&](TileRange tiles, TopkScratch& scratch) {
      for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) visitor(tile, scratch);
    });
  }

  TopkKeyCounts scan(const TopkScan& scan) {
    list_.clear();
    for_each_task([&](TileRange tiles, TopkScratch& scratch) { scan_tiles(scan, tiles, scratch); });
    TopkKeyCounts sum;
    for (std::size_t task = 0; task < plan_.tasks; ++task) {
      const TopkKeyCounts& part = workspace_.scratch[task].key_counts;
      sum.threshold += part.threshold;
      sum.guess += part.guess;
      sum.above += part.above;
      sum.non_finite += part.non_finite;
    }
    return sum;
  }

  void scan_tiles(const TopkScan& scan, TileRange tiles, TopkScratch& scratch) {
    scratch.key_counts = {};
    CandidateList::Cursor cursor;
    for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile)
      for_each_strip(plan_, tile,
                     [&](TopkStrip strip) { scan_into_list(scan, strip, cursor, scratch); });
  }

  /// A strip without space in the list leaves the candidates in the scratch, and p in the residual.
  void scan_into_list(const TopkScan& scan, TopkStrip strip, CandidateList::Cursor& cursor,
                      TopkScratch& scratch) {
    const std::uint64_t non_finite_before = scratch.key_counts.non_finite;
    const bool has_space = list_.reserve(cursor);
    const TopkCandidates out = has_space ? list_.at(cursor.at) : scratch.candidates(0);
    TopkScan strip_scan = scan;
    if (!has_space) strip_scan.clear = TopkClear::kNothing;
    const std::size_t found = topk_scan_strip(strip_scan, strip, out, scratch.key_counts);
    TopkRun& run = workspace_.runs[strip.begin / kTopkStrip];
    run = {cursor.at, static_cast<std::uint32_t>(found),
           has_space ? TopkRun::kStored : TopkRun::kOverflow};
    if (has_space) cursor.at += found;
    if (scratch.key_counts.non_finite == non_finite_before || !restores_in_place()) return;
    topk_restore_strip(
        strip_scan, strip, {out.value, out.index, found},
        strip_scan.clear == TopkClear::kNothing ? TopkWriteBack::kNo : TopkWriteBack::kYes);
    run.state = TopkRun::kRestored;
  }

  /// True if old residuals can only be recovered by arithmetic.
  bool restores_in_place() const {
    return writes_ == Writes::kDuringScan &&
           task_.feedback.residual_in == task_.feedback.residual_out;
  }

  Cutoff select(const TopkKeyCounts& key_counts) {
    TopkBracket bracket{{kTopkMinKey, scan_.limit}, plan_.count, 0};
    if (task_.force != TopkForce::kRadix) {
      topk_update_bracket(bracket, scan_.thresholds.threshold, key_counts.threshold, plan_.k);
      topk_update_bracket(bracket, scan_.thresholds.guess, key_counts.guess, plan_.k);
      topk_update_bracket(bracket, scan_.thresholds.above, key_counts.above, plan_.k);
    }
    const bool hit = scan_.thresholds.threshold <= bracket.keys.low && !list_.too_many();
    if (!hit || task_.force == TopkForce::kRadix) {
      restore_p();
      source_.reread = &reread_;
      if (task_.force != TopkForce::kRadix) gather(bracket, key_counts);
    }
    while (!bracket.single()) bracket = topk_narrow(source_, bracket, threads_);
    return {bracket.keys.low, bracket.reached < plan_.k ? plan_.k : plan_.k - bracket.above};
  }

  /// Restores p in all residuals.
  void restore_p() {
    path_ = TopkPath::kRadix;
    if (scan_.clear == TopkClear::kNothing) return;
    const auto cleared = [&](std::size_t) -> TopkKeys { return {scan_.thresholds.guess, kEndKey}; };
    for_each_task([&](TileRange tiles, TopkScratch& scratch) {
      correct(TopkCorrection::kRestore, tiles, scratch, cleared);
    });
  }

  /// Corrects the residuals of all candidates of a tile with keys in keys_of(tile).
  template <typename KeysOf>
  void correct(TopkCorrection correction, TileRange tiles, TopkScratch& scratch, KeysOf&& keys_of) {
    TopkCorrections corrections(scan_, correction, scratch);
    for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
      const TopkKeys keys = keys_of(tile);
      for_each_stored_run(plan_, workspace_, tile, [&](const TopkRunView& run) {
        for_each_piece(run, [&](const TopkRunView& piece) { corrections.add(tile, piece, keys); });
      });
    }
  }

  /// Reads p again with a better threshold. The threshold is the lower end of the bracket if few
  /// enough values reach that end. Otherwise the threshold is the sample's estimate, corrected by
  /// the observed error.
  void gather(TopkBracket& bracket, const TopkKeyCounts& key_counts) {
    std::uint32_t low = bracket.keys.low;
    if (bracket.reached > plan_.capacity)
      low = std::clamp(sample_.threshold_after(key_counts.threshold), low, bracket.keys.high - 1);
    TopkScan rescan = reread_;
    rescan.thresholds = {low, low, low};
    topk_update_bracket(bracket, low, scan(rescan).threshold, plan_.k);
    if (list_.too_many() || bracket.keys.low < low) return;
    source_.reread = nullptr;
    path_ = TopkPath::kGather;
  }

  void count_tiles(std::uint32_t key) {
    for_each_tile([&](std::size_t tile, TopkScratch& scratch) {
      TopkTileCount sum{};
      source_.for_each_values(tile, scratch, [&](const TopkRunView& run) {
        const TopkTileCount part = topk_count(run, key);
        sum.larger += part.larger;
        sum.equal += part.equal;
      });
      workspace_.tiles[tile] = sum;
    });
  }

  void compute_tile_offsets(Cutoff cutoff) {
    std::size_t selected = 0;
    for (std::size_t tile = 0; tile < plan_.tiles; ++tile) {
      payload_.first[tile] = static_cast<std::uint32_t>(selected);
      const TopkTileCount& found = workspace_.tiles[tile];
      const std::size_t ties = std::min<std::size_t>(cutoff.ties, found.equal);
      selected += found.larger + ties;
      cutoff.ties -= ties;
    }
    payload_.first[plan_.tiles] = static_cast<std::uint32_t>(selected);
  }

  void emit(Cutoff cutoff) {
    for_each_task([&](TileRange tiles, TopkScratch& scratch) {
      for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile)
        emit_tile(cutoff, tile, scratch);
      if (guessed()) correct_guess(cutoff, tiles, scratch);
    });
  }

  void emit_tile(Cutoff cutoff, std::size_t tile, TopkScratch& scratch) {
    const std::uint32_t low = min_selected_key(cutoff, tile);
    if (low == kPartialTies) return emit_partial_ties(cutoff, tile, scratch);
    std::size_t at = payload_.first[tile];
    const std::size_t end = payload_.first[tile + 1];
    source_.for_each_run(tile, low, scratch, [&](const TopkRunView& run) {
      at += topk_select(run, {low, kEndKey}, {chosen_ + at, payload_.index_in_tile + at}, end - at);
    });
  }

  /// Returns the key from which all values of a tile are selected, or kPartialTies if the ties run
  /// out within the tile.
  std::uint32_t min_selected_key(Cutoff cutoff, std::size_t tile) const {
    const TopkTileCount& found = workspace_.tiles[tile];
    const std::size_t ties = payload_.first[tile + 1] - payload_.first[tile] - found.larger;
    if (ties == found.equal) return cutoff.key;
    return ties == 0 ? cutoff.key + 1 : kPartialTies;
  }

  /// Emits the single tile in which the ties run out.
  void emit_partial_ties(Cutoff cutoff, std::size_t tile, TopkScratch& scratch) {
    std::size_t at = payload_.first[tile];
    std::size_t ties = payload_.first[tile + 1] - at - workspace_.tiles[tile].larger;
    source_.for_each_run(tile, cutoff.key, scratch, [&](const TopkRunView& run) {
      for (std::size_t i = 0; i < run.count; ++i) {
        const std::uint32_t key = topk_key(run.value[i]);
        const bool is_chosen = key > cutoff.key || (key == cutoff.key && ties != 0);
        if (guessed() && is_chosen != (key >= scan_.thresholds.guess))
          topk_correct(scan_, is_chosen ? TopkCorrection::kClear : TopkCorrection::kRestore, tile,
                       {run.value + i, run.index + i, 1});
        if (!is_chosen) continue;
        ties -= key == cutoff.key;
        chosen_[at] = run.value[i];
        payload_.index_in_tile[at++] = run.index[i];
      }
    });
  }

  /// True if the residual holds the remainder of every candidate that reaches the guess.
  bool guessed() const { return path_ == TopkPath::kHit && scan_.clear != TopkClear::kNothing; }

  /// Corrects the candidates between the guess and the lowest selected key.
  void correct_guess(Cutoff cutoff, TileRange tiles, TopkScratch& scratch) {
    const std::uint32_t guess = scan_.thresholds.guess;
    const auto wrong = [&](std::size_t tile) -> TopkKeys {
      const std::uint32_t low = min_selected_key(cutoff, tile);
      if (low == kPartialTies) return {0, 0};
      return {std::min(low, guess), std::max(low, guess)};
    };
    correct(cutoff.key < guess ? TopkCorrection::kClear : TopkCorrection::kRestore, tiles, scratch,
            wrong);
  }

  void fill_unused() {
    const std::size_t selected = payload_.first[plan_.tiles];
    std::fill(chosen_ + selected, chosen_ + plan_.k, 0.0f);
    std::fill(payload_.index_in_tile + selected, payload_.index_in_tile + plan_.k,
              std::uint16_t{0});
  }

  void encode_values() {
    if (task_.value_dtype == Dtype::kF32) return;
    constexpr std::size_t kBlock = Int8Format::kBlock;
    const std::size_t blocks = ceil_div(plan_.k, kBlock);
    threads_.run(plan_.tasks, [&](std::size_t task) {
      const std::size_t begin = blocks * task / plan_.tasks * kBlock;
      const std::size_t end = std::min(plan_.k, blocks * (task + 1) / plan_.tasks * kBlock);
      if (begin < end) encode_block(begin, end - begin);
    });
  }

  void encode_block(std::size_t begin, std::size_t count) {
    const EncodeInput sent{chosen_ + begin, Dtype::kF32, count};
    if (task_.value_dtype == Dtype::kBf16) {
      cast_loops<Bf16Format>().encode(
          {.sent = sent, .output = {.values = static_cast<Bf16*>(payload_.values) + begin}});
      return;
    }
    quantize_loops<Int8Format>().encode(
        {.sent = sent,
         .output = {.scales = payload_.scales + begin / Int8Format::kBlock,
                    .codes = static_cast<std::byte*>(payload_.values) + begin}});
  }

  /// Writes the missing part of the residual: all of p, or the remainders of the selected values.
  void write_residual() {
    if (writes_ == Writes::kNever || guessed()) return;
    TopkScan writing = scan_;
    writing.feedback = task_.feedback;
    writing.thresholds = {kInfinityBits, kInfinityBits, kInfinityBits};
    for_each_tile([&](std::size_t tile, TopkScratch& scratch) {
      if (writes_ == Writes::kAfterScan)
        for_each_strip(plan_, tile, [&](TopkStrip strip) {
          topk_scan_strip(writing, strip, scratch.candidates(0), scratch.key_counts);
        });
      topk_store_remainders({task_, chosen_, payload_.first[tile], payload_.first[tile + 1]}, tile);
    });
  }

  TopkResult poison(std::size_t non_finite) {
    for (std::size_t tile = 0; tile <= plan_.tiles; ++tile)
      payload_.first[tile] = static_cast<std::uint32_t>(std::min(plan_.k, tile * kTopkTile));
    for (std::size_t i = 0; i < plan_.k; ++i)
      payload_.index_in_tile[i] = static_cast<std::uint16_t>(i % kTopkTile);
    std::fill_n(chosen_, plan_.k, float_of(kNanBits));
    encode_values();
    restore_residual();
    return {plan_.k, TopkPath::kPoison, non_finite};
  }

  void restore_residual() {
    if (writes_ != Writes::kDuringScan) return;
    const TopkWriteBack write_back =
        scan_.clear == TopkClear::kNothing ? TopkWriteBack::kNo : TopkWriteBack::kYes;
    for_each_tile([&](std::size_t tile, TopkScratch&) {
      for_each_strip(plan_, tile, [&](TopkStrip strip) {
        if (!restores_in_place())
          return topk_copy_residual(task_.feedback, strip.begin, strip.begin + strip.count);
        const TopkRun& run = workspace_.runs[strip.begin / kTopkStrip];
        if (run.state == TopkRun::kRestored) return;
        const TopkCandidates out = list_.at(run.base);
        const std::size_t stored = run.state == TopkRun::kStored ? run.count : 0;
        topk_restore_strip(scan_, strip, {out.value, out.index, stored}, write_back);
      });
    });
  }

  const TopkEncode& task_;
  const TopkPayload& payload_;
  Threads& threads_;
  const TopkPlan plan_;
  TopkWorkspace workspace_;
  CandidateList list_;
  const Writes writes_;
  TopkScan scan_;
  TopkScan reread_;
  TopkSource source_;
  TopkSample sample_;
  TopkPath path_ = TopkPath::kHit;
  float* chosen_;  // p of the sent values
};

void check(const TopkEncode& task) {
  if (!is_gradient_dtype(task.dtype))
    throw InvalidArgumentError("top-k takes f32, bf16 or f16 gradients, not " +
                               std::string(dtype_name(task.dtype)));
  if (task.value_dtype != Dtype::kF32 && task.value_dtype != Dtype::kBf16 &&
      task.value_dtype != Dtype::kI8)
    throw InvalidArgumentError("top-k sends f32, bf16 or i8 values, not " +
                               std::string(dtype_name(task.value_dtype)));
  if (task.feedback.residual_in != nullptr && task.feedback.dtype != Dtype::kF32 &&
      task.feedback.dtype != Dtype::kBf16)
    throw InvalidArgumentError("residuals are f32 or bf16, not " +
                               std::string(dtype_name(task.feedback.dtype)));
  if (task.k > task.count || (task.k == 0) != (task.count == 0) || task.k > 0xffffffffu)
    throw InvalidArgumentError("top-k cannot select " + std::to_string(task.k) + " of " +
                               std::to_string(task.count) +
                               " values: select at least 1, at most all, and fewer than 2^32");
}

}  // namespace

TopkResult topk_encode(const TopkEncode& task, Threads& threads) {
  check(task);
  if (task.count != 0) return Encoder(task, threads).run();
  task.payload.first[0] = 0;
  return {0, TopkPath::kHit, 0};
}

}  // namespace tersor::kernels
