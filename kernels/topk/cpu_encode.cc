// Top-k with error feedback on the CPU. A sample gives a threshold that is almost surely a little
// too low; one pass computes p, writes the residual and keeps the candidates that reach it; the k-th
// key is found among them; what reaches that is sent.
//
// In the hope that a candidate will be sent, the pass leaves there what remains after sending; what
// is rejected is put back. Where the threshold missed, all candidates are put back, and p is read
// again from the residual (f32) or computed again. A residual that would not hold p exactly, or from
// which the old one could not be computed, is written in a second pass, when all is known.
// Long because the four ways to find the set share one state.
#include "kernels/bf16/cpu.h"
#include "kernels/int8/cpu.h"
#include "kernels/int8/formulas.h"
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

constexpr std::uint32_t kBeyondKeys = 0x80000000u;

/// What is chosen: keys above `key`, and the first `ties` that equal it.
struct Cut {
  std::uint32_t key;
  std::size_t ties;
};

class Encoder {
 public:
  Encoder(const TopkEncode& task, Threads& threads);
  TopkResult run();

 private:
  enum class Writes { kNever, kInTheScan, kAfterwards };

  static Writes writes_of(const TopkEncode& task);
  TopkClear clear_of() const;
  TopkScan rereading() const;

  template <typename Visitor>
  void for_each_tile(Visitor&& visitor);

  void scan(const TopkScan& scan);
  void scan_task(const TopkScan& scan, std::size_t task);
  void scan_into_list(const TopkScan& scan, TopkStrip strip, CandidateList::Cursor& cursor,
                      TopkScratch& scratch);
  bool undoes() const;

  Cut select();
  bool list_suffices(const TopkBracket& bracket) const;
  void put_back();
  void gather(std::uint32_t low);

  void count_tiles(std::uint32_t key);
  void place_tiles(Cut cut);
  void emit(Cut cut);
  void emit_tile(Cut cut, std::size_t tile, TopkScratch& scratch);
  void emit_with_some_ties(Cut cut, std::size_t tile, TopkScratch& scratch);
  void put_back_rejected(std::uint32_t low, std::size_t tile, TopkScratch& scratch);
  void fill_unused();

  void encode_values();
  void encode_block(std::size_t begin, std::size_t count);
  void write_residual();

  TopkResult poison();
  void restore_residual();

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
  TopkTally tally_;
  TopkPath path_ = TopkPath::kHit;
  float* chosen_;  // p of what is sent
};

TopkWorkspace carve(const TopkPlan& plan, std::span<std::byte> memory) {
  std::size_t bytes = 0;
  auto* aligned = reinterpret_cast<std::byte*>(
      align_up(reinterpret_cast<std::uintptr_t>(memory.data()), alignof(TopkScratch)));
  const TopkWorkspace workspace = topk_workspace(plan, aligned, bytes);
  const std::size_t lost = static_cast<std::size_t>(aligned - memory.data());
  if (lost + bytes > memory.size())
    throw InvalidArgument("top-k needs " + std::to_string(lost + bytes) +
                          " bytes of workspace, not " + std::to_string(memory.size()) +
                          "; see topk_workspace_bytes");
  return workspace;
}

Encoder::Encoder(const TopkEncode& task, Threads& threads)
    : task_(task),
      payload_(task.payload),
      threads_(threads),
      plan_(topk_plan(task.count, task.k, threads.count())),
      workspace_(carve(plan_, task.workspace)),
      list_(plan_, workspace_),
      writes_(writes_of(task)),
      scan_{.gradient = task.gradient,
            .dtype = task.dtype,
            .feedback = task.feedback,
            .ladder = {},
            .limit = topk_limit(task.value_dtype, task.feedback.residual_in != nullptr
                                                      ? task.feedback.dtype
                                                      : Dtype::kF32),
            .clear = clear_of()},
      source_{plan_, workspace_},
      chosen_(task.value_dtype == Dtype::kF32 ? static_cast<float*>(task.payload.values)
                                              : workspace_.chosen) {
  if (writes_ != Writes::kInTheScan) scan_.feedback.residual_out = nullptr;
  reread_ = rereading();
}

Encoder::Writes Encoder::writes_of(const TopkEncode& task) {
  const Feedback& feedback = task.feedback;
  if (feedback.residual_in == nullptr) return Writes::kNever;
  if (feedback.residual_in != feedback.residual_out) return Writes::kInTheScan;
  const bool can_undo = feedback.dtype == Dtype::kF32 && feedback.residual_factor != 0;
  return can_undo ? Writes::kInTheScan : Writes::kAfterwards;
}

TopkClear Encoder::clear_of() const {
  if (writes_ != Writes::kInTheScan) return TopkClear::kNothing;
  if (task_.value_dtype == Dtype::kF32) return TopkClear::kWhole;
  return task_.value_dtype == Dtype::kBf16 ? TopkClear::kBf16 : TopkClear::kNothing;
}

/// Reads p once more, and writes nothing.
TopkScan Encoder::rereading() const {
  TopkScan reread = scan_;
  reread.clear = TopkClear::kNothing;
  reread.feedback.residual_out = nullptr;
  if (writes_ == Writes::kInTheScan && task_.feedback.dtype == Dtype::kF32) {
    reread.gradient = task_.feedback.residual_out;
    reread.dtype = Dtype::kF32;
    reread.feedback.residual_in = nullptr;
  }
  return reread;
}

TopkResult Encoder::run() {
  const double scale = task_.force == TopkForce::kTooFew    ? 0.6
                       : task_.force == TopkForce::kTooMany ? 4.0
                                                            : 1.0;
  scan_.ladder = topk_ladder(scan_, plan_, workspace_, scale, threads_);
  scan(scan_);
  for (std::size_t task = 0; task < plan_.tasks; ++task) {
    const TopkTally& part = workspace_.scratch[task].tally;
    for (std::size_t rung = 0; rung < kTopkRungs; ++rung)
      tally_.reached[rung] += part.reached[rung];
    tally_.non_finite += part.non_finite;
  }
  if (tally_.non_finite != 0) return poison();
  const Cut cut = select();
  count_tiles(cut.key);
  place_tiles(cut);
  emit(cut);
  fill_unused();
  encode_values();
  write_residual();
  return {payload_.first[plan_.tiles], path_, 0};
}

/// Calls visitor(tile, scratch) for each tile, in parallel.
template <typename Visitor>
void Encoder::for_each_tile(Visitor&& visitor) {
  threads_.run(plan_.tasks, [&](std::size_t task) {
    for (std::size_t tile = plan_.tiles_before(task); tile < plan_.tiles_before(task + 1); ++tile)
      visitor(tile, workspace_.scratch[task]);
  });
}

void Encoder::scan(const TopkScan& scan) {
  list_.clear();
  threads_.run(plan_.tasks, [&](std::size_t task) { scan_task(scan, task); });
}

void Encoder::scan_task(const TopkScan& scan, std::size_t task) {
  TopkScratch& scratch = workspace_.scratch[task];
  scratch.tally = {};
  CandidateList::Cursor cursor;
  for (std::size_t tile = plan_.tiles_before(task); tile < plan_.tiles_before(task + 1); ++tile)
    for_each_strip(plan_, tile,
                   [&](TopkStrip strip) { scan_into_list(scan, strip, cursor, scratch); });
}

/// A strip that finds no room leaves its candidates in the scratch, and p in the residual.
void Encoder::scan_into_list(const TopkScan& scan, TopkStrip strip, CandidateList::Cursor& cursor,
                             TopkScratch& scratch) {
  const std::uint64_t bad_before = scratch.tally.non_finite;
  const bool room = list_.reserve(cursor);
  const TopkCandidates out = room ? list_.at(cursor.at) : scratch.candidates(0);
  TopkScan one = scan;
  if (!room) one.clear = TopkClear::kNothing;
  const std::size_t found = topk_scan_strip(one, strip, out, scratch.tally);
  TopkRun& run = workspace_.runs[strip.begin / kTopkStrip];
  run = {cursor.at, static_cast<std::uint32_t>(found),
         room ? TopkRun::kStored : TopkRun::kTooMany};
  if (room) cursor.at += found;
  if (scratch.tally.non_finite == bad_before || !undoes()) return;
  topk_undo_strip(one, strip, {out.value, out.index, found},
                  one.clear == TopkClear::kNothing ? TopkPut::kNo : TopkPut::kYes);
  run.state = TopkRun::kUndone;
}

/// Whether old residuals come back by arithmetic only.
bool Encoder::undoes() const {
  return writes_ == Writes::kInTheScan && task_.feedback.residual_in == task_.feedback.residual_out;
}

bool Encoder::list_suffices(const TopkBracket& bracket) const {
  return !list_.too_many() && scan_.ladder[kTopkThreshold] <= bracket.keys.low &&
         task_.force != TopkForce::kRadix;
}

Cut Encoder::select() {
  TopkBracket bracket = task_.force == TopkForce::kRadix
                            ? topk_widest_bracket(tally_, scan_.limit, plan_.k)
                            : topk_bracket(scan_.ladder, tally_, scan_.limit, plan_.k);
  if (!list_suffices(bracket)) {
    put_back();
    source_.reread = &reread_;
    path_ = TopkPath::kGather;
  }
  while (true) {
    const bool fits = bracket.reached <= plan_.capacity && task_.force != TopkForce::kRadix;
    if (source_.reread != nullptr && fits) gather(bracket.keys.low);
    if (bracket.single()) break;
    if (source_.reread != nullptr) path_ = TopkPath::kRadix;
    bracket = topk_narrow(source_, bracket, threads_);
  }
  if (task_.force == TopkForce::kRadix) path_ = TopkPath::kRadix;
  return {bracket.keys.low, bracket.reached < plan_.k ? plan_.k : plan_.k - bracket.above};
}

/// Makes the residual p everywhere.
void Encoder::put_back() {
  if (scan_.clear == TopkClear::kNothing) return;
  for_each_tile([&](std::size_t tile, TopkScratch&) {
    for_each_stored_run(plan_, workspace_, tile, [&](const TopkRunView& run) {
      topk_put(scan_.feedback, tile, run);
    });
  });
}

void Encoder::gather(std::uint32_t low) {
  TopkScan scan_again = reread_;
  scan_again.ladder.fill(low);
  scan(scan_again);
  source_.reread = list_.too_many() ? &reread_ : nullptr;
}

void Encoder::count_tiles(std::uint32_t key) {
  for_each_tile([&](std::size_t tile, TopkScratch& scratch) {
    TopkTileCount sum{};
    source_.for_each_run(tile, key, scratch, [&](const TopkRunView& run) {
      const TopkTileCount part = topk_count(run, key);
      sum.larger += part.larger;
      sum.equal += part.equal;
    });
    workspace_.tiles[tile] = sum;
  });
}

void Encoder::place_tiles(Cut cut) {
  std::size_t kept = 0;
  for (std::size_t tile = 0; tile < plan_.tiles; ++tile) {
    payload_.first[tile] = static_cast<std::uint32_t>(kept);
    const TopkTileCount& found = workspace_.tiles[tile];
    const std::size_t ties = std::min<std::size_t>(cut.ties, found.equal);
    kept += found.larger + ties;
    cut.ties -= ties;
  }
  payload_.first[plan_.tiles] = static_cast<std::uint32_t>(kept);
}

void Encoder::emit(Cut cut) {
  for_each_tile(
      [&](std::size_t tile, TopkScratch& scratch) { emit_tile(cut, tile, scratch); });
}

void Encoder::emit_tile(Cut cut, std::size_t tile, TopkScratch& scratch) {
  const TopkTileCount& found = workspace_.tiles[tile];
  std::size_t at = payload_.first[tile];
  const std::size_t end = payload_.first[tile + 1];
  const std::size_t ties = end - at - found.larger;
  if (ties != 0 && ties != found.equal) return emit_with_some_ties(cut, tile, scratch);
  const std::uint32_t low = ties == found.equal ? cut.key : cut.key + 1;
  source_.for_each_run(tile, low, scratch, [&](const TopkRunView& run) {
    at += topk_select(run, {low, kBeyondKeys}, {chosen_ + at, payload_.index_in_tile + at},
                      end - at);
  });
  if (path_ == TopkPath::kHit) put_back_rejected(low, tile, scratch);
}

/// The one tile in which the ties run out.
void Encoder::emit_with_some_ties(Cut cut, std::size_t tile, TopkScratch& scratch) {
  std::size_t at = payload_.first[tile];
  std::size_t ties = payload_.first[tile + 1] - at - workspace_.tiles[tile].larger;
  const auto emit_run = [&](const TopkRunView& run) {
    for (std::size_t i = 0; i < run.count; ++i) {
      const std::uint32_t key = topk_key(run.value[i]);
      if (key < cut.key || (key == cut.key && ties == 0)) {
        if (path_ == TopkPath::kHit && scan_.clear != TopkClear::kNothing)
          topk_put(scan_.feedback, tile, {run.value + i, run.index + i, 1});
        continue;
      }
      ties -= key == cut.key;
      chosen_[at] = run.value[i];
      payload_.index_in_tile[at++] = run.index[i];
    }
  };
  source_.for_each_run(tile, cut.key, scratch, emit_run);
}

void Encoder::put_back_rejected(std::uint32_t low, std::size_t tile, TopkScratch& scratch) {
  if (scan_.clear == TopkClear::kNothing) return;
  const TopkCandidates rejected = scratch.candidates(1);
  const auto put_piece = [&](const TopkRunView& piece) {
    const std::size_t found = topk_select(piece, {0, low}, rejected, kTopkStripRoom);
    topk_put(scan_.feedback, tile, {rejected.value, rejected.index, found});
  };
  for_each_stored_run(plan_, workspace_, tile,
                      [&](const TopkRunView& run) { for_each_piece(run, put_piece); });
}

void Encoder::fill_unused() {
  const std::size_t kept = payload_.first[plan_.tiles];
  std::fill(chosen_ + kept, chosen_ + plan_.k, 0.0f);
  std::fill(payload_.index_in_tile + kept, payload_.index_in_tile + plan_.k, std::uint16_t{0});
}

void Encoder::encode_values() {
  if (task_.value_dtype == Dtype::kF32) return;
  constexpr std::size_t kBlock = Int8Format::kBlock;
  const std::size_t blocks = ceil_div(plan_.k, kBlock);
  threads_.run(plan_.tasks, [&](std::size_t task) {
    const std::size_t begin = blocks * task / plan_.tasks * kBlock;
    const std::size_t end = std::min(plan_.k, blocks * (task + 1) / plan_.tasks * kBlock);
    if (begin < end) encode_block(begin, end - begin);
  });
}

void Encoder::encode_block(std::size_t begin, std::size_t count) {
  if (task_.value_dtype == Dtype::kBf16)
    return bf16_encode({.gradient = chosen_ + begin,
                        .dtype = Dtype::kF32,
                        .count = count,
                        .feedback = {},
                        .values = static_cast<Bf16*>(payload_.values) + begin});
  int8_encode({.gradient = chosen_ + begin,
               .dtype = Dtype::kF32,
               .count = count,
               .feedback = {},
               .noise = {},
               .scales = payload_.scales + begin / Int8Format::kBlock,
               .codes = static_cast<std::byte*>(payload_.values) + begin});
}

/// What is not in the residual yet: all of p, or what remains of the chosen values.
void Encoder::write_residual() {
  const bool settled = path_ == TopkPath::kHit && scan_.clear != TopkClear::kNothing;
  if (writes_ == Writes::kNever || settled) return;
  TopkScan writing = scan_;
  writing.feedback = task_.feedback;
  writing.ladder.fill(kInfinityBits);
  for_each_tile([&](std::size_t tile, TopkScratch& scratch) {
    if (writes_ == Writes::kAfterwards)
      for_each_strip(plan_, tile, [&](TopkStrip strip) {
        topk_scan_strip(writing, strip, scratch.candidates(0), scratch.tally);
      });
    topk_settle({task_, chosen_, payload_.first[tile], payload_.first[tile + 1]}, tile);
  });
}

TopkResult Encoder::poison() {
  for (std::size_t tile = 0; tile <= plan_.tiles; ++tile)
    payload_.first[tile] = static_cast<std::uint32_t>(std::min(plan_.k, tile * kTopkTile));
  for (std::size_t i = 0; i < plan_.k; ++i)
    payload_.index_in_tile[i] = static_cast<std::uint16_t>(i % kTopkTile);
  std::fill_n(chosen_, plan_.k, float_of(kNanBits));
  encode_values();
  restore_residual();
  return {plan_.k, TopkPath::kPoison, tally_.non_finite};
}

void Encoder::restore_residual() {
  if (writes_ != Writes::kInTheScan) return;
  const TopkPut put = scan_.clear == TopkClear::kNothing ? TopkPut::kNo : TopkPut::kYes;
  for_each_tile([&](std::size_t tile, TopkScratch&) {
    for_each_strip(plan_, tile, [&](TopkStrip strip) {
      if (!undoes())
        return topk_copy_residual(task_.feedback, strip.begin, strip.begin + strip.count);
      const TopkRun& run = workspace_.runs[strip.begin / kTopkStrip];
      if (run.state == TopkRun::kUndone) return;
      const TopkCandidates out = list_.at(run.base);
      const std::size_t stored = run.state == TopkRun::kStored ? run.count : 0;
      topk_undo_strip(scan_, strip, {out.value, out.index, stored}, put);
    });
  });
}

void check(const TopkEncode& task) {
  if (!is_gradient_dtype(task.dtype))
    throw InvalidArgument("top-k takes f32, bf16 or f16 gradients, not " +
                          std::string(dtype_name(task.dtype)));
  if (task.value_dtype != Dtype::kF32 && task.value_dtype != Dtype::kBf16 &&
      task.value_dtype != Dtype::kI8)
    throw InvalidArgument("top-k sends f32, bf16 or i8 values, not " +
                          std::string(dtype_name(task.value_dtype)));
  if (task.feedback.residual_in != nullptr && task.feedback.dtype != Dtype::kF32 &&
      task.feedback.dtype != Dtype::kBf16)
    throw InvalidArgument("residuals are f32 or bf16, not " +
                          std::string(dtype_name(task.feedback.dtype)));
  if (task.k > task.count || (task.k == 0) != (task.count == 0) || task.k > 0xffffffffu)
    throw InvalidArgument("top-k cannot keep " + std::to_string(task.k) + " of " +
                          std::to_string(task.count) +
                          " values: at least 1, at most all, and fewer than 2^32");
}

}  // namespace

TopkResult topk_encode(const TopkEncode& task, Threads& threads) {
  check(task);
  if (task.count != 0) return Encoder(task, threads).run();
  task.payload.first[0] = 0;
  return {0, TopkPath::kHit, 0};
}

}  // namespace tersor::kernels
