// Measures codecs for the cost model. Each call runs with few and with many values, to derive the
// costs per call and per value.
#include "comm/tuning/measure.h"
#include "codecs/planned_codec.h"
#include "comm/collectives/context.h"
#include "comm/collectives/host_copy.h"
#include "kernels/host/elementwise.h"

#include <tersor/buffer.h>
#include <tersor/stream.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace tersor {
namespace {

constexpr std::size_t kFew = 1024;  // values
constexpr std::size_t kMinMany = 16 * kFew, kMany = std::size_t{1} << 20;
constexpr std::size_t kFrames = 4;   // of a reduce
constexpr double kTarget = 2e-3;     // maximum seconds per figure
constexpr double kLongCall = 20e-3;  // for a single call: disturbances matter little
constexpr int kMinCalls = 3, kMaxCalls = 200;
constexpr int kBurst = 16;

/// The mean duration of `calls` calls.
template <typename Function>
double time_of(Function&& function, int calls, const Stream* stream) {
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) function();
  if (stream != nullptr) stream->synchronize();
  return seconds_since(start) / calls;
}

/// The minimum of several calls, because disturbances only add time. On a device, several bursts
/// share the cost of waiting.
template <typename Function>
double min_seconds(Function&& function, const Stream* stream = nullptr) {
  const auto start = Clock::now();
  double best = time_of(function, 1, stream);
  if (best > kLongCall) return best;
  for (int call = 1; call < kMaxCalls; ++call) {
    best = std::min(best, time_of(function, stream == nullptr ? 1 : kBurst, stream));
    const bool enough = best <= 0 || seconds_since(start) > kTarget;
    if (call + 1 >= kMinCalls && enough) break;
  }
  return best;
}

// Sums of four uniform numbers: close enough to a normal distribution for sparse codecs.
std::vector<float> sample_values(std::size_t count) {
  std::uint64_t state = 0x9e3779b97f4a7c15;
  const auto uniform = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
  };
  std::vector<float> values(count);
  for (float& value : values) value = uniform() + uniform() + uniform() + uniform();
  return values;
}

/// The memory and stream for measurements.
struct Site {
  Memory memory = Memory::kHost;
  const Stream* stream = nullptr;  ///< for device memory

  StreamView view() const { return stream == nullptr ? StreamView{} : stream->view(); }
  Buffer zeros(std::size_t bytes) const { return zeroed_buffer(bytes, memory, view()); }
};

/// A codec with all memory for a gradient.
class CodecRun {
 public:
  CodecRun(const std::string& spec, Dtype dtype, std::size_t count, Site site)
      : site_(site),
        codec_(spec, {.count = count,
                      .dtype = dtype,
                      .memory = site.memory,
                      .stream = site.view(),
                      .contributions = kFrames}),
        gradient_memory_(count * dtype_bytes(dtype), site.memory),
        output_memory_(site.zeros(count * dtype_bytes(dtype))),
        residual_memory_(site.zeros(codec_.codec().has_feedback() ? count * sizeof(float) : 0)),
        native_memory_(site.zeros(codec_.plan().rounds.front().native_count * sizeof(float))),
        frame_(codec_.frame()),
        sum_(codec_.frame()),
        words_memory_(site.zeros(sizeof(StateWords))),
        gradient_(gradient_memory_.values(count, dtype)),
        output_(output_memory_.values(count, dtype)) {
    from_floats(sample_values(count), 1.0f, gradient_memory_.values(count, dtype), site.view());
    if (codec_.codec().has_feedback())
      state_ = in_place(residual_memory_.values(count, Dtype::kF32));
    encode();
    const bool host = site.memory == Memory::kHost;
    frames_.assign(kFrames, host ? used_bytes(frame_) : frame_.span());
  }

  const Stream* stream() const { return site_.stream; }
  std::size_t count() const { return codec_.count(); }
  bool allows(Exchange exchange) const { return codec_.allows(exchange); }

  void encode() {
    codec_.encode(gradient_, frame_.span(), state_,
                  reinterpret_cast<StateWords*>(words_memory_.pointer()));
  }
  void decode(std::size_t frames) { codec_.decode(std::span(frames_).first(frames), output_); }
  void reduce(std::size_t frames) { codec_.reduce(std::span(frames_).first(frames), sum_.span()); }
  void encode_native() { codec_.encode_native(gradient_, 0, native_values()); }
  void decode_native() { codec_.decode_native(native_values(), 0, output_); }

 private:
  ValueSpan native_values() const {
    const Round& round = codec_.plan().rounds.front();
    return native_memory_.values(round.native_count, round.native_dtype);
  }

  Site site_;
  PlannedCodec codec_;
  Buffer gradient_memory_, output_memory_, residual_memory_, native_memory_;
  Buffer frame_, sum_, words_memory_;
  ConstValueSpan gradient_;
  ValueSpan output_;
  std::optional<SegmentState> state_;
  std::vector<ConstByteSpan> frames_;
};

/// The cost of a call, from a small and a large gradient. Both results are at least 0.
template <typename Call>
WorkCost cost_of(CodecRun& few, CodecRun& many, Call call) {
  const double few_seconds = min_seconds([&] { call(few); }, few.stream());
  const double many_seconds = min_seconds([&] { call(many); }, many.stream());
  const auto further = static_cast<double>(many.count() - few.count());
  const double per_value = std::max(0.0, (many_seconds - few_seconds) / further);
  return {std::max(0.0, few_seconds - per_value * static_cast<double>(few.count())), per_value};
}

/// Enough values to measure the cost per value.
std::size_t many_values(const std::string& spec, Dtype dtype, Site site) {
  for (std::size_t count = kMinMany; count < kMany; count *= 8) {
    CodecRun run(spec, dtype, count, site);
    if (time_of([&] { run.encode(); }, 1, site.stream) > kLongCall) return count;
  }
  return kMany;
}

/// The cost of each payload after the first, for a decode or a reduction.
WorkCost marginal_cost(WorkCost all, WorkCost first) {
  constexpr double kOthers = kFrames - 1;
  return {std::max(0.0, all.per_call - first.per_call) / kOthers,
          std::max(0.0, all.per_value - first.per_value) / kOthers};
}

}  // namespace

CodecCosts measure_codec(const std::string& spec, Dtype dtype, Memory memory) {
  const auto stream = memory == Memory::kHost ? nullptr : std::make_unique<Stream>();
  const Site site{memory, stream.get()};
  CodecRun few(spec, dtype, kFew, site), many(spec, dtype, many_values(spec, dtype, site), site);
  CodecCosts costs;
  costs.encode = cost_of(few, many, [](CodecRun& run) { run.encode(); });
  costs.decode = cost_of(few, many, [](CodecRun& run) { run.decode(1); });
  const WorkCost all = cost_of(few, many, [](CodecRun& run) { run.decode(kFrames); });
  costs.decode_more = marginal_cost(all, costs.decode);
  if (many.allows(Exchange::kTwoShot)) {
    costs.reduce = cost_of(few, many, [](CodecRun& run) { run.reduce(1); });
    const WorkCost sum = cost_of(few, many, [](CodecRun& run) { run.reduce(kFrames); });
    costs.reduce_more = marginal_cost(sum, costs.reduce);
  }
  const bool sends_raw_gradient = make_codec(spec)->traits().lossless;
  if (!many.allows(Exchange::kNativeSum) || sends_raw_gradient) return costs;
  costs.encode_native = cost_of(few, many, [](CodecRun& run) { run.encode_native(); });
  costs.decode_native = cost_of(few, many, [](CodecRun& run) { run.decode_native(); });
  return costs;
}

double measure_addition() {
  const Site site;
  const Buffer sums = site.zeros(kMany * sizeof(float)), values = site.zeros(kMany * sizeof(float));
  const double seconds = min_seconds(
      [&] { kernels::add_values(sums.pointer(), values.pointer(), Dtype::kF32, kMany); });
  return seconds / static_cast<double>(sums.bytes());
}

}  // namespace tersor
