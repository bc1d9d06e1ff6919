// entropy: `none` with coded exponents. Sections, checks and sums for kernels/entropy. The loops of
// `none` add and round decoded blocks.

#include "codecs/checks.h"
#include "codecs/entropy_payload.h"
#include "codecs/first_fault.h"
#include "codecs/frame_codec.h"
#include "codecs/registry.h"
#include "codecs/sums.h"
#include "kernels/cast/formats.h"
#include "kernels/cast/kernels.h"
#include "kernels/entropy/cpu.h"

#include <tersor/error.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace tersor::encoding {
namespace {

constexpr std::size_t kMaxValueBytes = 4;

class EntropyCodec final : public FrameCodec {
 public:
  EntropyCodec(CodecSpec spec, int) : FrameCodec(std::move(spec), kEntropyCodecId) {}

  static int read(OptionReader&) { return 0; }

  CodecTraits traits() const override {
    return {.lossless = !has_feedback(), .unit = kEntropyBlock, .block = kEntropyBlock};
  }

 protected:
  PlanSizes plan_sizes(const PlanRequest& request) const override {
    if (request.memory == Memory::kDevice)
      throw_unsupported(*this,
                        "encodes host memory only: copy the values to the host, or use none");
    return {.frame_bytes = sizeof(FrameHeader) + payload_bytes(request.segments, request.dtype),
            .workspace_bytes = Scratch::bytes(request.contributions, max_tasks(request.threads))};
  }

  std::vector<Round> plan_rounds(const PlanRequest&) const override {
    // A native round would have f32 values; there is none.
    return {{.exchanges = {Exchange::kTwoShot, Exchange::kGather}, .native_dtype = Dtype::kU32}};
  }

  void do_encode(const EncodeCall& call, ByteSpan frame) const override {
    const StateWords words = words_of(call);
    PayloadSum sum;
    EntropyWriter writer = writer_of(call, frame, sum);
    std::atomic<std::uint64_t> overflows{0};
    for (std::size_t i = 0; i < call.segments.size(); ++i) write(call, words, i, writer, overflows);
    seal(call, words, overflows, writer, frame);
  }

  void do_decode(const DecodeCall& call) const override {
    check_no_window(*this, call);
    Scratch scratch(call);
    const bool assigns = call.mode == DecodeMode::kAssign;
    check_headers(header_of(call), call.frames, HeaderExtra::kLength);
    try {
      if (call.frames.size() == 1 && assigns && call.factor == 1) return copy(call, scratch);
      check_payloads(call, scratch, !assigns);
      for_each_block(call, scratch, [&](const Slice& block, auto& values) {
        for (std::size_t i = 0; i < call.frames.size(); ++i)
          if (!values.decode(i, values.block(i))) return false;
        none().decode(
            {values.payloads(), block.count, decoded_of(call, block, kernels::Store::kCached)});
        return true;
      });
    } catch (const WireError&) {
      if (assigns) poison(call.outputs);
      throw;
    }
  }

  void do_reduce(const ReduceCall& call, ByteSpan frame) const override {
    Scratch scratch(call);
    check_headers(header_of(call), call.frames, HeaderExtra::kLength);
    try {
      check_payloads(call, scratch, true);
    } catch (const WireError&) {
      poison(call.states);
      std::memset(frame.data(), 0, sizeof(FrameHeader));  // readers refuse the frame
      throw;
    }
    reduce(call, scratch, frame);
  }

 private:
  static kernels::CastLoops none() { return kernels::cast_loops<kernels::NoneFormat>(); }

  static std::size_t payload_bytes(std::span<const Segment> segments, Dtype dtype) {
    std::size_t bytes = 0;
    for (const Segment& segment : segments)
      bytes += EntropyLayout{segment.count, dtype}.most_bytes();
    return bytes;
  }

  /// Returns a header with the capacity.
  template <typename Call>
  FrameHeader header_of(const Call& call) const {
    return frame_header({*this, call.segments, dtype_of(call), call.identity},
                        {.bytes = payload_bytes(call.segments, dtype_of(call))});
  }

  /// The workspace of a call that reads frames: a view per frame, and for each task a block, its
  /// address and the next word per frame.
  class Scratch {
   public:
    static constexpr std::size_t bytes(std::size_t frames, std::size_t tasks) {
      return views_bytes(frames) + tasks * task_bytes(frames);
    }
    template <typename Call>
    explicit Scratch(const Call& call)
        : frames_(call.frames.size()), memory_(call.execution.workspace.data()) {}

    std::span<EntropyView> views() const {
      return {reinterpret_cast<EntropyView*>(memory_), frames_};
    }
    std::byte* block(std::size_t task, std::size_t frame) const {
      return of_task(task) + frame * kEntropyBlock * kMaxValueBytes;
    }
    std::span<const void*> payloads(std::size_t task) const {
      return {reinterpret_cast<const void**>(of_task(task) + frames_ * kBlockBytes), frames_};
    }
    std::uint64_t* words(std::size_t task) const {
      return reinterpret_cast<std::uint64_t*>(payloads(task).data() + frames_);
    }

   private:
    static constexpr std::size_t kBlockBytes = kEntropyBlock * kMaxValueBytes;
    static constexpr std::size_t views_bytes(std::size_t frames) {
      return align_up(frames * sizeof(EntropyView), kWorkspaceAlignment);
    }
    static constexpr std::size_t task_bytes(std::size_t frames) {
      return frames * (kBlockBytes + sizeof(void*) + sizeof(std::uint64_t)) / 64 * 64 + 64;
    }
    std::byte* of_task(std::size_t task) const {
      return memory_ + views_bytes(frames_) + task * task_bytes(frames_);
    }

    std::size_t frames_;
    std::byte* memory_;
  };

  /// A block of all frames of a call.
  struct Blocks {
    const Scratch& scratch;
    const EntropyLayout& layout;
    std::size_t task, number, count;
    std::size_t frame = 0;        // of the last decode
    const char* fault = nullptr;  // of the last decode

    std::byte* block(std::size_t i) const { return scratch.block(task, i); }
    std::span<const void* const> payloads() const { return scratch.payloads(task); }

    /// Decodes the block of a frame, or only checks the block if `values` is null. Returns false
    /// after a fault.
    bool decode(std::size_t i, std::byte* values) {
      const EntropyView& view = scratch.views()[i];
      const std::byte* words = view.blocks + 4 * scratch.words(task)[i];
      const std::uint16_t size = view.size(number);
      frame = i;
      fault = nullptr;
      if (size != 0 && size != kEntropyPlain)
        fault = kernels::entropy_decode(words, size, count, layout.dtype, view.table, values);
      else if (values != nullptr && size == 0)
        std::memset(values, 0, count * dtype_bytes(layout.dtype));
      else if (values != nullptr)
        std::memcpy(values, words, count * dtype_bytes(layout.dtype));
      return fault == nullptr;
    }
  };

  /// Calls visit(views, segment) after reading the sections of each segment. Throws WireError for a
  /// fault.
  template <typename Call, typename Visitor>
  static void for_each_segment(const Call& call, const Scratch& scratch, const Visitor& visit) {
    const std::span<EntropyView> views = scratch.views();
    for (EntropyView& view : views) view.end = 0;
    for (std::size_t i = 0; i < call.segments.size(); ++i) {
      const EntropyLayout layout{call.segments[i].count, dtype_of(call)};
      for (std::size_t frame = 0; frame < views.size(); ++frame)
        if (const char* wrong = views[frame].read(used_payload(call.frames[frame]), layout))
          throw_invalid_indices(frame, views.size(), i, wrong);
      visit(i, layout);
    }
    for (std::size_t frame = 0; frame < views.size(); ++frame)
      if (views[frame].end != used_payload(call.frames[frame]).size())
        throw_invalid_indices(frame, views.size(), call.segments.size(),
                              "bytes follow the last segment");
  }

  static ConstByteSpan used_payload(ConstByteSpan frame) {
    return payload_of(frame).first(read_frame_header(frame).payload_bytes);
  }

  /// Calls visit(slice, blocks) for each block of the call on the available threads. `visit`
  /// returns false if decoding failed.
  template <typename Call, typename Visitor>
  static void for_each_block(const Call& call, const Scratch& scratch, const Visitor& visit) {
    for_each_segment(call, scratch, [&](std::size_t segment, const EntropyLayout& layout) {
      visit_blocks(call, scratch, segment, layout, visit);
    });
  }
  template <typename Call, typename Visitor>
  static void visit_blocks(const Call& call, const Scratch& scratch, std::size_t segment,
                           const EntropyLayout& layout, const Visitor& visit) {
    FirstFault fault;
    parallel_for(layout.blocks(), call.execution.threads,
                 [&](std::size_t task, std::size_t begin, std::size_t end) {
                   const std::span<EntropyView> views = scratch.views();
                   std::uint64_t* words = scratch.words(task);
                   for (std::size_t i = 0; i < views.size(); ++i) {
                     words[i] = views[i].first_word(layout, begin);
                     scratch.payloads(task)[i] = scratch.block(task, i);
                   }
                   for (std::size_t block = begin; block < end; ++block) {
                     const Slice slice = block_slice(segment, layout, block);
                     Blocks blocks{scratch, layout, task, block, slice.count};
                     if (!visit(slice, blocks))
                       return fault.add(blocks.frame, segment, blocks.fault);
                     for (std::size_t i = 0; i < views.size(); ++i)
                       words[i] += views[i].words(layout, block);
                   }
                 });
    fault.check(call.frames.size());
  }

  /// Checks checksums and sections, and optionally all blocks.
  template <typename Call>
  static void check_payloads(const Call& call, const Scratch& scratch, bool all) {
    if (call.identity.checksum == Checksum::kOn)
      check_checksums(call.frames, call.execution.threads);
    if (!all) return for_each_segment(call, scratch, [](std::size_t, const EntropyLayout&) {});
    for_each_block(call, scratch, [&](const Slice&, Blocks& blocks) {
      for (std::size_t i = 0; i < call.frames.size(); ++i)
        if (!blocks.decode(i, nullptr)) return false;
      return true;
    });
  }

  /// Assigns the values of a single frame. Sums the payload while parts are in the cache.
  static void copy(const DecodeCall& call, const Scratch& scratch) {
    const ConstByteSpan payload = used_payload(call.frames[0]);
    const bool has_checksum = call.identity.checksum == Checksum::kOn;
    PayloadSum sum;
    const auto add = [&](std::size_t begin, std::size_t end) {
      if (has_checksum) sum.add(payload.data() + begin, begin, end - begin);
    };
    try {
      for_each_segment(call, scratch, [](std::size_t, const EntropyLayout&) {});  // all sections
      std::size_t segment_begin = 0;
      for_each_segment(call, scratch, [&](std::size_t segment, const EntropyLayout& layout) {
        if (layout.count == 0) return;
        const EntropyView& view = scratch.views()[0];
        const auto blocks_begin = static_cast<std::size_t>(view.blocks - payload.data());
        add(segment_begin, blocks_begin);
        visit_blocks(call, scratch, segment, layout, [&](const Slice& block, Blocks& blocks) {
          const std::size_t begin = blocks_begin + 4 * scratch.words(blocks.task)[0];
          const bool is_last = blocks.number + 1 == layout.blocks();
          add(begin, is_last ? view.end : begin + 4 * view.words(layout, blocks.number));
          return blocks.decode(0,
                               call.outputs[segment].subspan(block.first, block.count).pointer());
        });
        segment_begin = view.end;
      });
    } catch (const WireError&) {
      if (has_checksum) check_checksums(call.frames, call.execution.threads);
      throw;
    }
    if (has_checksum) check_checksums(call.frames, {&sum, 1});
  }

  void reduce(const ReduceCall& call, const Scratch& scratch, ByteSpan frame) const {
    const StateWords words = words_of(call);
    PayloadSum sum;
    EntropyWriter writer = writer_of(call, frame, sum);
    std::atomic<std::uint64_t> overflows{0};
    for_each_segment(call, scratch, [&](std::size_t segment, const EntropyLayout& layout) {
      std::byte* const value_space = writer.value_space(layout);
      visit_blocks(call, scratch, segment, layout, [&](const Slice& block, Blocks& blocks) {
        for (std::size_t i = 0; i < call.frames.size(); ++i)
          if (!blocks.decode(i, blocks.block(i))) return false;
        overflows += none().reduce(
            {.payloads = blocks.payloads(),
             .dtype = call.dtype,
             .count = block.count,
             .factor = call.factor,
             .feedback = feedback_of(call.states, block, words, kernels::Store::kCached),
             .output = {value_space + block.first * dtype_bytes(call.dtype),
                        kernels::Store::kCached}});
        return true;
      });
      writer.write(layout, value_space);
    });
    seal(call, words, overflows, writer, frame);
  }

  /// One thread sums blocks while they are in the cache. Several threads sum the finished payload.
  template <typename Call>
  static EntropyWriter writer_of(const Call& call, ByteSpan frame, PayloadSum& sum) {
    Threads* threads = call.execution.threads;
    const bool sums =
        call.identity.checksum == Checksum::kOn && (threads == nullptr || threads->count() == 1);
    return {payload_of(frame), dtype_of(call), threads, sums ? &sum : nullptr};
  }

  /// Encodes a segment. Blocks with feedback are first rounded to values.
  static void write(const EncodeCall& call, const StateWords& words, std::size_t index,
                    EntropyWriter& writer, std::atomic<std::uint64_t>& overflows) {
    constexpr kernels::Store kStore = kernels::Store::kCached;
    const EntropyLayout layout{call.segments[index].count, writer.dtype};
    if (!is_active(call.segments[index])) {
      writer.write_zeros(layout);
      const Slice whole{.segment = index, .count = layout.count};
      return keep_residual(feedback_of(call.states, whole, words, kStore), layout.count);
    }
    if (call.states.empty()) return writer.write(layout, call.gradients[index].pointer());
    std::byte* const values = writer.value_space(layout);
    parallel_for(layout.blocks(), writer.threads,
                 [&](std::size_t, std::size_t begin, std::size_t end) {
                   for (std::size_t block = begin; block < end; ++block) {
                     const Slice slice = block_slice(index, layout, block);
                     overflows += none().encode(
                         {.sent = sent_of(call, slice, words, kStore),
                          .output = {values + slice.first * dtype_bytes(writer.dtype), kStore}});
                   }
                 });
    writer.write(layout, values);
  }

  template <typename Call>
  void seal(const Call& call, const StateWords& words, std::uint64_t overflows,
            const EntropyWriter& writer, ByteSpan frame) const {
    FrameHeader header = header_of(call);
    header.payload_bytes = writer.used;
    const ByteSpan used = frame.first(sizeof header + writer.used);
    if (writer.sum != nullptr)
      seal_frame(header, used, *writer.sum);
    else
      seal_frame(header, used, call.execution.threads);
    write_words(words, overflows, call.words_out);
  }
};

}  // namespace

CodecEntry entropy_entry() {
  return entry_of<EntropyCodec>(
      {.name = "entropy",
       .id = kEntropyCodecId,
       .summary = "unchanged values with coded exponents; bf16 in two thirds of the bytes",
       .options = {}});
}

}  // namespace tersor::encoding
