// See random_call.h.

#include "tests/gpu/random_call.h"

#include "codecs/examples.h"
#include "tests/support/codec_harness.h"
#include "tests/support/reference.h"

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <string_view>

namespace tersor::test {
namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : generator_(seed) {}

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(generator_() % limit); }
  bool chance(std::size_t one_in) { return below(one_in) == 0; }

  template <typename List>
  auto pick(const List& choices) {
    return *(std::begin(choices) + static_cast<std::ptrdiff_t>(below(std::size(choices))));
  }

 private:
  std::mt19937_64 generator_;
};

float rarely(unsigned one_in, float special, float x) {
  return mixed(bits(x)) % one_in == 0 ? special : x;
}

const ValueKind kGaussian = {"Gaussian", [](auto, auto, float x) { return x; }};

/// The hard values, and easier kinds.
const std::vector<ValueKind>& value_kinds() {
  static const std::vector<ValueKind> all = [] {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<ValueKind> kinds = hard_values();
    kinds.insert(kinds.end(),
                 {kGaussian,
                  {"some NaN", [](auto, auto, float x) { return rarely(200, kNan, x); }},
                  {"some infinite", [](auto, auto, float x) { return rarely(300, kInfinity, x); }},
                  {"huge", [](auto, auto, float x) { return x * 1e38f; }},
                  {"any bits",
                   [](auto, auto, float x) {
                     return from_bits(static_cast<std::uint32_t>(mixed(bits(x))));
                   }},
                  {"one only", [](auto i, auto n, float) { return i == n / 2 ? 3.0f : 0.0f; }},
                  {"steps", [](auto i, auto, float) {
                     return static_cast<float>(i % 97) * (i % 2 == 0 ? 1.0f : -1.0f);
                   }}});
    return kinds;
  }();
  return all;
}

/// A codec and the values of its options.
struct Choices {
  std::string_view name;
  std::vector<encoding::OptionValues> options;
};

/// All registered codecs for devices. Codecs with more option values occur more often.
const std::vector<Choices>& codec_choices() {
  constexpr std::array kShares = {0.00001, 0.0001, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0};
  constexpr std::size_t kLeast = 3;
  static const std::vector<Choices> all = [&] {
    std::vector<Choices> choices;
    for (const CodecInfo& info : codecs()) {
      if (info.name == "entropy") continue;  // on hosts only
      const Choices own = {info.name, encoding::option_values(info, kShares)};
      choices.insert(choices.end(), kLeast, own);
      for (const auto& option : own.options)
        choices.insert(choices.end(), option.values.size(), own);
    }
    return choices;
  }();
  return all;
}

std::string draw_spec(Draw& draw) {
  const Choices codec = draw.pick(codec_choices());
  std::string spec(codec.name);
  for (const auto& option : codec.options)
    spec +=
        (&option == codec.options.data() ? ":" : ",") + option.key + "=" + draw.pick(option.values);
  return draw.chance(2) ? spec + "+ef" : spec;
}

/// Usually a small count near a multiple of a thread block's tile.
std::size_t draw_count(Draw& draw) {
  constexpr std::size_t kTiles[] = {1,   2,    8,    16,   32,   128,   256,
                                    512, 1024, 2048, 4096, 8192, 16384, 32768};
  if (draw.chance(60)) return 100'000 + draw.below(200'000);
  if (draw.chance(3)) return draw.below(3'000);
  return std::max<std::size_t>(draw.pick(kTiles) + draw.below(5), 2) - 2;
}

std::vector<Segment> draw_segments(Draw& draw) {
  std::vector<Segment> segments(1 + draw.below(draw.chance(4) ? 20 : 2));
  for (Segment& segment : segments) {
    segment.count = draw_count(draw);
    segment.parameter = static_cast<std::uint32_t>(draw.below(100));
    segment.first_index = draw.chance(3) ? draw.below(5'000) : 512 * draw.below(9);
  }
  return segments;
}

/// Nearly the smallest numbers of rows and columns accepted by the codec.
void draw_shape(Draw& draw, const Codec& codec, Segment& segment) {
  for (std::size_t most = 16; !codec.carries(segment); most += 1 + most / 16) {
    segment.rows = 1 + draw.below(most);
    segment.columns = 1 + draw.below(most);
    segment.count = segment.rows * segment.columns;
  }
}

StateWords draw_words(Draw& draw) {
  return {.step = static_cast<std::uint32_t>(draw.below(1000)),
          .gradient_factor = draw.chance(2) ? 1.0f : 0.37f,
          .residual_factor = draw.chance(2) ? 1.0f : 0.9f};
}

}  // namespace

std::vector<float> RandomCall::values(Part part, std::size_t segment) const {
  constexpr std::uint64_t kSegments = 100, kParts = 3;
  const std::uint64_t own = (seed * kSegments + segment) * kParts + static_cast<unsigned>(part);
  const std::size_t count = segments[segment].count;
  if (part == Part::kGradient) return values_of(gradients, count, own);
  if (part == Part::kOutput) return gaussian(count, own);
  std::vector<float> values = values_of(residuals, count, own);
  for (float& value : values) value *= 0.1f;
  return values;
}

std::string RandomCall::text() const {
  std::string text = "seed " + std::to_string(seed) + ": " + spec;
  for (const Segment& segment : segments)
    text += (&segment == segments.data() ? ", values " : " + ") + std::to_string(segment.count) +
            " from " + std::to_string(segment.first_index) + " in " + std::to_string(segment.rows) +
            " rows";
  text += ", gradients " + std::string(dtype_name(dtype)) + " " + gradients.name + ", residuals " +
          std::string(dtype_name(residual_dtype)) + " " + residuals.name;
  if (in_place) text += " in place";
  text += ", gradient, residual, output and next residual shifted by";
  for (const std::size_t shift : shifts) text += " " + std::to_string(shift);
  if (checksum == Checksum::kOff) text += ", no checksum";
  if (active) text += ", first segment active: " + std::to_string(*active);
  return text + ", frames " + std::to_string(frames);
}

RandomCall draw_call(std::uint64_t seed) {
  Draw draw(seed);
  RandomCall call;
  call.seed = seed;
  call.spec = draw_spec(draw);
  call.segments = draw_segments(draw);
  if (const auto codec = make_codec(call.spec); codec->traits().needs_shape) {
    call.segments.resize(std::min<std::size_t>(call.segments.size(), 3));
    for (Segment& segment : call.segments) draw_shape(draw, *codec, segment);
    call.remembers = !draw.chance(3);
  }
  call.dtype = draw.pick(std::initializer_list{Dtype::kF32, Dtype::kBf16, Dtype::kF16});
  call.residual_dtype = draw.chance(2) ? Dtype::kF32 : Dtype::kBf16;
  call.gradients = draw.pick(value_kinds());
  call.residuals = draw.chance(2) ? call.gradients : kGaussian;
  const bool shifted = draw.chance(2);
  for (std::size_t& shift : call.shifts) shift = !shifted || draw.chance(3) ? 0 : draw.below(8);
  call.in_place = draw.chance(2);
  call.checksum = draw.chance(2) ? Checksum::kOn : Checksum::kOff;
  call.frames = 1 + draw.below(4);
  call.words = draw_words(draw);
  call.native_factor = draw.chance(2) ? 1.0f : 0.25f;
  if (draw.chance(4)) call.active = draw.chance(3) ? 0u : 1u;
  return call;
}

}  // namespace tersor::test
