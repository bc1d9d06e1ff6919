// Compares the transmitted signatures and random keys of collectives with
// docs/reference/wire-format.md.
#include "comm/transport/forwarding.h"
#include "tests/comm/ranks.h"
#include "tests/support/reference.h"

#include <gtest/gtest.h>

#include <string>

namespace tersor::testing {
namespace {

constexpr std::size_t kSignedCount = 1024;
constexpr const char* kSpec = "int8:rounding=stochastic";
constexpr std::uint64_t kSeed = 0x123456789abcdef;

/// The last gathered frame of a rank, and the signature of its last exchange.
struct Gathered {
  std::uint64_t signature = 0;
  std::vector<std::byte> frame;
};

class RecordingTransport final : public ForwardingTransport {
 public:
  RecordingTransport(Transport& inner, Gathered& gathered)
      : RecordingTransport({&inner, [](Transport*) {}}, gathered) {}
  RecordingTransport(std::shared_ptr<Transport> inner, Gathered& gathered)
      : ForwardingTransport(std::move(inner)), gathered_(gathered) {}

  std::unique_ptr<Transport> channel() override {
    return std::make_unique<RecordingTransport>(inner().channel(), gathered_);
  }

  Handle all_gather(const Operation& operation, ConstByteSpan send, std::size_t capacity) override {
    gathered_ = {operation.signature, {send.begin(), send.end()}};
    return inner().all_gather(operation, send, capacity);
  }
  Handle exchange(const Operation& operation, std::span<const SendTo> sends,
                  std::span<const ReceiveFrom> receives) override {
    gathered_.signature = operation.signature;
    return inner().exchange(operation, sends, receives);
  }

 private:
  Gathered& gathered_;
};

/// Runs `body` on two ranks with a gradient each.
std::vector<Gathered> gather(const std::vector<Values>& inputs,
                             const std::function<void(Transport&, Values&)>& body) {
  std::vector<Gathered> all(inputs.size());
  on_ranks(inputs, [&](Transport& transport, Values& values) {
    RecordingTransport recording(transport, all[static_cast<std::size_t>(transport.rank())]);
    body(recording, values);
  });
  return all;
}

/// Little-endian bytes of consecutive numbers, and their FNV-1a hash.
class Bytes {
 public:
  template <typename T>
  Bytes& number(T value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      text_ += static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * i & 0xff);
    return *this;
  }
  Bytes& text(const std::string& characters) {
    text_ += characters + '\0';
    return *this;
  }
  std::uint64_t hash() const {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const char c : text_) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return hash;
  }

 private:
  std::string text_;
};

/// Version, operation, reduction, algorithm, ranks, chunk values.
Bytes beginning(std::uint8_t operation, std::uint8_t reduction, std::uint8_t algorithm) {
  return Bytes()
      .number(kFormatVersion)
      .number(operation)
      .number(reduction)
      .number(algorithm)
      .number(std::uint32_t{2})
      .number(std::uint64_t{1} << 20);
}

Bytes& segment(Bytes& bytes, std::uint64_t first_index) {
  return bytes.number(std::uint8_t{0})
      .number(std::uint64_t{kSignedCount})
      .number(first_index)
      .text(kSpec);
}

TEST(Signatures, MatchDocumentedFormat) {
  const CollectiveOptions options = {.codec = kSpec, .seed = kSeed};
  const auto of = [&](const std::function<void(Transport&, Values&)>& body) {
    return gather(gradients(2, kSignedCount), body)[0].signature;
  };
  Bytes sum = beginning(0, 0, 3), mean = beginning(0, 1, 2), shards = beginning(2, 0, 3);
  EXPECT_EQ(of([&](Transport& transport, Values& values) {
              auto one_shot = options;
              one_shot.algorithm = Algorithm::kOneShot;
              allreduce(transport, values, one_shot);
            }),
            segment(sum, 0).hash());
  EXPECT_EQ(of([&](Transport& transport, Values& values) {
              auto two_shot = options;
              two_shot.algorithm = Algorithm::kTwoShot;
              two_shot.reduction = Reduction::kMean;
              allreduce(transport, values, two_shot);
            }),
            segment(mean, 0).hash());
  segment(shards, 0);
  EXPECT_EQ(of([&](Transport& transport, Values& values) {
              Values all(2 * kSignedCount);
              allgather(transport, values, all, options);
            }),
            segment(shards, kSignedCount).hash());
}

TEST(Signatures, IncludeNonzeroRoot) {
  const CollectiveOptions options = {.codec = kSpec};
  const auto of = [&](const std::function<void(Transport&, Values&)>& body) {
    return gather(gradients(2, kSignedCount), body)[0].signature;
  };
  Bytes broadcasts = beginning(3, 0, 3), reduces = beginning(4, 0, 2), gathers = beginning(5, 0, 3),
        scatters = beginning(6, 0, 3);
  Values all(2 * kSignedCount);
  EXPECT_EQ(of([&](Transport& ranks, Values& values) { broadcast(ranks, values, 1, options); }),
            segment(broadcasts, 0).number(std::uint32_t{1}).hash());
  EXPECT_EQ(
      of([&](Transport& ranks, Values& values) { reduce(ranks, values, values, 0, options); }),
      segment(reduces, 0).hash());
  segment(gathers, 0);
  EXPECT_EQ(of([&](Transport& ranks, Values& values) { gather(ranks, values, all, 1, options); }),
            segment(gathers, kSignedCount).number(std::uint32_t{1}).hash());
  segment(scatters, 0);
  EXPECT_EQ(of([&](Transport& ranks, Values& values) { scatter(ranks, all, values, 0, options); }),
            segment(scatters, kSignedCount).hash());
}

TEST(Signatures, HierarchicalSignatureIncludesHosts) {
  std::vector<std::uint64_t> found(3);
  on_ranks(gradients(3, kSignedCount), [&](Transport& transport, Values& values) {
    Gathered gathered;
    RecordingTransport recording(transport, gathered);
    const std::vector<int> hosts = {7, 7, 5};
    allreduce(recording, values,
              {.codec = kSpec, .algorithm = Algorithm::kHierarchical, .hosts = hosts});
    found[static_cast<std::size_t>(transport.rank())] = gathered.signature;
  });
  Bytes bytes = Bytes()
                    .number(kFormatVersion)
                    .number(std::uint8_t{0})
                    .number(std::uint8_t{0})
                    .number(std::uint8_t{4})
                    .number(std::uint32_t{3})
                    .number(std::uint64_t{1} << 20);
  segment(bytes, 0).text("none");
  for (const std::uint32_t host : {0, 0, 1}) bytes.number(host);
  EXPECT_EQ(found[0], bytes.hash());
}

TEST(Signatures, ReducerSignatureIncludesParameterNames) {
  const auto found = gather(gradients(2, kSignedCount), [](Transport& transport, Values& values) {
    GradientReducer reducer(transport, {.rules = {{"*", kSpec}},
                                        .reduction = Reduction::kSum,
                                        .algorithm = Algorithm::kOneShot,
                                        .bucket_bytes = 1 << 16});
    reducer.add("layer.weight", values);
    reducer.ready("layer.weight");
    reducer.wait();
  });
  Bytes bytes = Bytes().number(kFormatVersion).text("reducer");
  bytes.number(std::uint8_t{0}).number(std::uint8_t{3}).number(std::uint32_t{2});
  bytes.number(std::uint64_t{1} << 20).number(std::uint64_t{1} << 16);
  EXPECT_EQ(found[0].signature, segment(bytes, 0).text("layer.weight").hash());
}

/// A part of a parameter, with the memory required by codec calls.
struct Part {
  Part(std::size_t first, std::size_t count) : segment{.count = count, .first_index = first} {
    const Plan plan = codec->plan({.segments = {&segment, 1}, .contributions = 2});
    workspace = Buffer(plan.workspace_bytes);
    bytes = plan.frame_bytes;
  }

  /// The frame of a rank's gradient with this key.
  Buffer encode(const Values& values, std::uint64_t key, std::uint64_t signature) const {
    const ConstValueSpan whole(values);
    const ConstValueSpan gradient = whole.subspan(segment.first_index, segment.count);
    Buffer frame(bytes);
    codec->encode({.segments = {&segment, 1},
                   .gradients = {&gradient, 1},
                   .random = {.key = key},
                   .identity = {.signature = signature},
                   .execution = {.workspace = workspace.span()}},
                  frame.span());
    return frame;
  }

  /// The owner's reduction of the frames.
  Buffer reduce(std::span<const ConstByteSpan> frames, std::uint64_t key,
                std::uint64_t signature) const {
    Buffer frame(bytes);
    codec->reduce({.segments = {&segment, 1},
                   .frames = frames,
                   .random = {.key = key},
                   .identity = {.signature = signature},
                   .execution = {.workspace = workspace.span()}},
                  frame.span());
    return frame;
  }

  std::shared_ptr<const Codec> codec = make_codec(kSpec);
  Segment segment;
  Buffer workspace;
  std::size_t bytes = 0;
};

std::vector<std::byte> bytes_of(const Buffer& frame) {
  return {frame.span().begin(), frame.span().end()};
}

TEST(RandomKeys, MatchDocumentedFormat) {
  const std::vector<Values> inputs = gradients(2, kSignedCount);
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    const auto sent = gather(inputs, [&](Transport& transport, Values& values) {
      allreduce(transport, values, {.codec = kSpec, .algorithm = algorithm, .seed = kSeed});
    });
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      const std::uint64_t signature = sent[rank].signature;
      if (algorithm == Algorithm::kOneShot) {
        const Buffer frame =
            Part(0, kSignedCount).encode(inputs[rank], test::mixed(kSeed ^ rank << 33), signature);
        EXPECT_EQ(sent[rank].frame, bytes_of(frame)) << rank;
        continue;
      }
      const Part owned(kSignedCount / 2 * rank, kSignedCount / 2);
      const Buffer first = owned.encode(inputs[0], test::mixed(kSeed), signature);
      const Buffer second = owned.encode(inputs[1], test::mixed(kSeed ^ 1ull << 33), signature);
      const ConstByteSpan frames[] = {first.span(), second.span()};
      const std::uint64_t key = test::mixed(kSeed ^ rank << 33 ^ 1ull << 32);
      EXPECT_EQ(sent[rank].frame, bytes_of(owned.reduce(frames, key, signature))) << rank;
    }
  }
}

}  // namespace
}  // namespace tersor::testing
