// The wire format, fixed by files. Every build must write tests/golden/*.bin byte for byte, and
// must refuse tests/golden/broken/*.bin with the same error texts. docs/reference/wire-format.md
// defines the gradients. A change of the format needs a new version, not new files.
// TERSOR_WRITE_GOLDEN=1 writes the files (for a new codec) and the fuzz corpus.

#include "tests/support/codec_harness.h"
#include "tests/support/reference.h"
#include "tests/support/specs.h"

#include <gtest/gtest.h>
#include <tersor/codecs/entropy.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace tersor::test {
namespace {

namespace fs = std::filesystem;

/// The folder tests/, or TERSOR_TESTS if the program was moved after the build.
fs::path tests_folder() {
  const char* moved = std::getenv("TERSOR_TESTS");
  return moved != nullptr ? fs::path(moved) : fs::path(__FILE__).parent_path().parent_path();
}

const fs::path kTests = tests_folder();

struct Golden {
  std::string name;
  std::string spec;
  std::vector<std::size_t> counts;
  Dtype dtype = Dtype::kF32;
  Checksum checksum = Checksum::kOn;
};

/// Variants not in the registry: options, 16-bit gradients, several segments.
const std::vector<Golden> kGoldenVariants = {
    {"none-bf16", "none", {301}, Dtype::kBf16},
    {"none-f16", "none", {301}, Dtype::kF16},
    {"bf16-stochastic", "bf16:rounding=stochastic+ef", {601}},
    {"int8-bf16", "int8", {601}, Dtype::kBf16},
    {"int8-stochastic", "int8:rounding=stochastic", {601}},
    {"int8-segments", "int8", {0, 257, 1000}},
    {"int8-unchecked", "int8", {601}, Dtype::kF32, Checksum::kOff},
    {"int4-f16", "int4", {601}, Dtype::kF16},
    {"int4-stochastic", "int4:rounding=stochastic+ef", {601}},
    {"topk-dense", "topk:density=0.05", {1000}},
    {"topk-bf16", "topk:density=0.05,values=bf16+ef", {1000}},
    {"topk-int8", "topk:density=0.3,values=int8", {1000}},
    {"topk-segments", "topk:density=0.002", {0, 500, 140'000}},
    {"hadamard-1-bit", "hadamard:bits=1+ef", {601}},
    {"hadamard-3-bits", "hadamard:bits=3", {0, 257, 5000}},
    {"hadamard-4-bits", "hadamard:bits=4+ef", {601}, Dtype::kBf16},
    {"blocktopk-int4", "blocktopk:density=0.03,values=int4+ef", {601}, Dtype::kBf16},
    {"blocktopk-bf16", "blocktopk:density=0.2,values=bf16", {5000}},
    {"blocktopk-segments", "blocktopk:density=0.005", {0, 500, 10'000}},
    {"entropy-bf16", "entropy", {5000}, Dtype::kBf16},
    {"entropy-f16", "entropy", {5000}, Dtype::kF16},
    {"entropy-segments", "entropy", {0, 3, 9000}},
    {"mxfp8-e5m2", "mxfp8:elements=e5m2+ef", {601}, Dtype::kBf16},
    {"nvfp4-bf16", "nvfp4", {601}, Dtype::kBf16},
    {"nvfp4-segments", "nvfp4+ef", {0, 17, 1000}, Dtype::kF16},
    {"mxfp8-segments", "mxfp8", {0, 33, 1000}, Dtype::kF16},
};

/// All registered codecs with and without feedback, and the variants.
std::vector<Golden> golden_frames() {
  std::vector<Golden> frames = kGoldenVariants;
  for (const std::string& name : framed_codecs()) {
    frames.push_back({name, name, {601}});
    frames.push_back({name + "-ef", name + "+ef", {601}});
  }
  return frames;
}

/// Value i of stream s: 24 random bits and a random exponent, exact in f32.
float golden_value(std::uint64_t stream, std::uint64_t i) {
  const std::uint64_t random = mixed((stream << 32) + i);
  const auto digits = static_cast<double>(static_cast<std::int64_t>(random >> 40) - (1 << 23));
  return static_cast<float>(std::ldexp(digits, static_cast<int>(random & 15) - 31));
}

/// True if the tested memory is the host's, or the codec encodes device memory.
bool runs_here(const Golden& golden) {
  return test_device() == nullptr || runs_on_devices(golden.spec);
}

std::vector<float> golden_values(std::uint64_t stream, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = golden_value(stream, i);
  return values;
}

/// Segment j: parameter 7 + j, first_index 512 · j, gradient stream 2j, residual stream 2j + 1.
CodecHarness harness_of(const Golden& golden, Memory memory = default_memory()) {
  CodecHarness harness(golden.spec, golden.counts,
                       {.dtype = golden.dtype, .checksum = golden.checksum, .memory = memory});
  harness.words = {.step = 3, .gradient_factor = 0.5f, .residual_factor = 1.5f};
  harness.random = {.key = 0x0123456789abcdef};
  harness.identity.signature = 0x1122334455667788;
  for (std::size_t j = 0; j < golden.counts.size(); ++j) {
    harness.segments[j].first_index = 512 * j;
    harness.set_gradient(golden_values(2 * j, golden.counts[j]), j);
    harness.set_residual(golden_values(2 * j + 1, golden.counts[j]), j);
  }
  return harness;
}

bool writes_golden() { return std::getenv("TERSOR_WRITE_GOLDEN") != nullptr; }

GuardedBytes read_file(const fs::path& path, Memory memory = default_memory()) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  GuardedBytes frame(bytes.size(), 0, memory);
  std::ranges::copy(std::as_bytes(std::span(bytes)), frame.span().begin());
  return frame;
}

void write_file(const fs::path& path, ConstByteSpan bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

void write_seed(const std::string& name, ConstByteSpan bytes) {
  write_file(kTests / "fuzz/corpus/decode" / name, bytes);
}

TEST(Golden, EncodedFramesMatchFiles) {
  for (const Golden& golden : golden_frames()) {
    if (!runs_here(golden)) continue;
    const fs::path path = kTests / "golden" / (golden.name + ".bin");
    CodecHarness harness = harness_of(golden);
    const GuardedBytes frame = harness.encode();
    if (writes_golden()) {
      write_file(path, frame.span());
      write_seed(golden.name, frame.span());
    }
    const GuardedBytes expected = read_file(path);
    EXPECT_TRUE(same_bytes(frame.span(), expected.span())) << golden.name;
  }
}

TEST(Golden, DecodedFramesMatchHost) {
  for (const Golden& golden : golden_frames()) {
    if (!runs_here(golden)) continue;
    const fs::path path = kTests / "golden" / (golden.name + ".bin");
    CodecHarness harness = harness_of(golden), host = harness_of(golden, Memory::kHost);
    harness.decode({read_file(path)});
    host.decode({read_file(path, Memory::kHost)});
    EXPECT_TRUE(same_values(harness.outputs(), host.outputs())) << golden.name;
    EXPECT_TRUE(harness.intact()) << golden.name;
  }
}

TEST(Golden, FolderContainsOneFilePerFrame) {
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(kTests / "golden"))
    files += entry.is_regular_file();
  EXPECT_EQ(files, golden_frames().size());
}

/// The damage of a golden frame, and the expected error.
struct Broken {
  const char* name;
  const char* golden;
  void (*damage)(std::vector<std::byte>& bytes);
  const char* error;
};

template <typename T>
void overwrite(std::vector<std::byte>& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  change_header(bytes, [](FrameHeader&) {});
}

/// Returns the offset of the sizes of an entropy frame with one segment.
std::size_t sizes_at(const std::vector<std::byte>& bytes) {
  return 64 + EntropyLayout{1, Dtype::kF32}.table_bytes(static_cast<std::size_t>(bytes[64]));
}

const std::vector<Broken> kBroken = {
    {"empty", "int8", [](auto& bytes) { bytes.clear(); }, "frame is truncated: 0 bytes"},
    {"half-a-header", "int8", [](auto& bytes) { bytes.resize(40); },
     "frame is truncated: 40 bytes, its header takes 64"},
    {"short-payload", "int8", [](auto& bytes) { bytes.resize(bytes.size() - 16); },
     "frame is truncated: 608 bytes follow its header, expected 624"},
    {"magic", "int8", [](auto& bytes) { overwrite(bytes, 0, 'X'); }, "frame magic is"},
    {"version-1", "int8", [](auto& bytes) { overwrite(bytes, 4, std::uint16_t{1}); },
     "frame version is 1, expected 3"},
    {"version-2", "int8", [](auto& bytes) { overwrite(bytes, 4, std::uint16_t{2}); },
     "frame version is 2, expected 3"},
    {"codec", "int8", [](auto& bytes) { overwrite(bytes, 6, std::uint16_t{5}); },
     "frame codec_id is 5 (int4), expected 4 (int8)"},
    {"dtype", "int8", [](auto& bytes) { overwrite(bytes, 8, std::uint8_t{2}); },
     "frame dtype is f16, expected f32"},
    {"round", "int8", [](auto& bytes) { overwrite(bytes, 9, std::uint8_t{1}); },
     "frame round is 1, expected 0"},
    {"flags", "int8", [](auto& bytes) { overwrite(bytes, 10, std::uint16_t{0x101}); },
     "frame flags is 0x101, expected 0x1"},
    {"unchecked", "int8", [](auto& bytes) { overwrite(bytes, 10, std::uint16_t{0}); },
     "frame flags is 0x0, expected 0x1"},
    {"segments", "int8-segments", [](auto& bytes) { overwrite(bytes, 12, 2u); },
     "frame segments is 2, expected 3"},
    {"count", "int8", [](auto& bytes) { overwrite(bytes, 16, std::uint64_t{602}); },
     "frame count is 602, expected 601"},
    {"first-index", "int8", [](auto& bytes) { overwrite(bytes, 24, std::uint64_t{512}); },
     "frame first_index is 512, expected 0"},
    {"payload-bytes", "int8", [](auto& bytes) { overwrite(bytes, 32, std::uint64_t{640}); },
     "frame payload_bytes is 640, expected 624"},
    {"signature", "int8", [](auto& bytes) { overwrite(bytes, 40, std::uint64_t{1}); },
     "frame signature is 0x1, expected 0x1122334455667788"},
    {"flipped-bit", "int8", [](auto& bytes) { bytes[400] ^= std::byte{4}; }, "frame checksum is"},
    {"density", "topk-dense", [](auto& bytes) { overwrite(bytes, 48, 0.25); },
     "frame parameters is density=0.25,values=f32, expected density=0.05,values=f32"},
    {"bits", "hadamard", [](auto& bytes) { overwrite(bytes, 52, std::uint8_t{3}); },
     "frame parameters is bits=3, expected bits=2"},
    {"blocktopk-values", "blocktopk-int4",
     [](auto& bytes) { overwrite(bytes, 10, std::uint16_t{0x201}); },
     "frame flags is density=0.03,values=bf16, expected density=0.03,values=int4"},
    {"blocktopk-kept", "blocktopk", [](auto& bytes) { overwrite(bytes, 64 + 16 + 8, ~0u); },
     "frame 0 of 1, segment 0:"},
    {"blocktopk-place", "blocktopk-segments",
     [](auto& bytes) { overwrite(bytes, 64 + 16 + 4, 0x80000000u); }, "frame 0 of 1, segment 1:"},
    {"blocktopk-order", "blocktopk",
     [](auto& bytes) { overwrite(bytes, 64 + 16 + 16, std::uint64_t{0}); },
     "frame 0 of 1, segment 0:"},
    {"mxfp8-elements", "mxfp8-e5m2", [](auto& bytes) { overwrite(bytes, 10, std::uint16_t{1}); },
     "frame flags is elements=e4m3, expected elements=e5m2"},
    {"topk-kept", "topk-dense", [](auto& bytes) { overwrite(bytes, 68, 51u); },
     "frame 0 of 1, segment 0:"},
    {"topk-falling", "topk-segments",
     [](auto& bytes) { overwrite(bytes, 64 + 16 + 16 + 16 + 16 + 4, 400u); },
     "frame 0 of 1, segment 2:"},
    {"topk-index", "topk-dense",
     [](auto& bytes) { overwrite(bytes, 80 + 98, std::uint16_t{1000}); },
     "frame 0 of 1, segment 0:"},
    {"topk-order", "topk-dense", [](auto& bytes) { overwrite(bytes, 80, std::uint16_t{999}); },
     "frame 0 of 1, segment 0:"},
    {"entropy-length", "entropy", [](auto& bytes) { overwrite(bytes, 32, std::uint64_t{1} << 40); },
     "expected a multiple of 16 up to"},
    {"entropy-table", "entropy", [](auto& bytes) { overwrite(bytes, 66, bytes[65]); },
     "its table has a wrong exponent"},
    {"entropy-exponent", "entropy-f16", [](auto& bytes) { overwrite(bytes, 65, std::uint8_t{32}); },
     "its table has a wrong exponent"},
    {"entropy-size", "entropy",
     [](auto& bytes) { overwrite(bytes, sizes_at(bytes), std::uint16_t{601}); },
     "a block is longer than its values"},
    {"entropy-short", "entropy",
     [](auto& bytes) { overwrite(bytes, sizes_at(bytes), kEntropyPlain); },
     "its payload is too short"},
    {"entropy-long", "entropy",
     [](auto& bytes) { overwrite(bytes, sizes_at(bytes), std::uint16_t{100}); },
     "bytes follow the last segment"},
    {"entropy-head", "entropy", [](auto& bytes) { overwrite(bytes, sizes_at(bytes) + 16, 5u); },
     "a block has an unknown head"},
    {"entropy-codes", "entropy", [](auto& bytes) { overwrite(bytes, bytes.size() - 24, 0u); },
     "the unary codes of a block are damaged"},
};

Golden golden_of(const Broken& broken) {
  for (const Golden& golden : golden_frames())
    if (golden.name == broken.golden) return golden;
  throw InvalidArgumentError(std::string("no golden frame ") + broken.golden);
}

void write_broken(const Broken& broken) {
  const GuardedBytes good = read_file(kTests / "golden" / (std::string(broken.golden) + ".bin"));
  std::vector<std::byte> bytes(good.span().begin(), good.span().end());
  broken.damage(bytes);
  write_file(kTests / "golden/broken" / (std::string(broken.name) + ".bin"), bytes);
  write_seed(std::string("broken-") + broken.name, bytes);
}

TEST(Golden, BrokenFramesRaiseExpectedErrors) {
  for (const Broken& broken : kBroken) {
    if (!runs_here(golden_of(broken))) continue;
    if (writes_golden()) write_broken(broken);
    const fs::path path = kTests / "golden/broken" / (std::string(broken.name) + ".bin");
    ASSERT_TRUE(fs::exists(path)) << path;
    const GuardedBytes frame = read_file(path);
    CodecHarness harness = harness_of(golden_of(broken));
    const std::string error = error_of<WireError>([&] { harness.decode({frame}); });
    EXPECT_NE(error.find(broken.error), std::string::npos) << broken.name << ": " << error;
  }
}

}  // namespace
}  // namespace tersor::test
