// See reduction.h.

#include "tests/gpu/nccl/reduction.h"

#include "kernels/scalar/convert.h"
#include "tests/comm/ranks.h"

#include <tersor/inprocess.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tersor::test {
namespace {

constexpr StateWords kFirstWords;

Bytes bytes_of(ConstByteSpan bytes) { return {bytes.begin(), bytes.end()}; }

Bytes narrowed(const std::vector<float>& values) {
  std::vector<Bf16> narrow;
  for (const float value : values) narrow.push_back({kernels::f32_to_bf16(value)});
  return bytes_of(std::as_bytes(std::span(narrow)));
}

/// A rank on the CPU: the bits after each call.
std::vector<Bytes> calls_on_cpu(const Reduction& reduction, Transport& transport, int calls) {
  std::vector<float> residual(reduction.count);
  std::vector<float> owned(owned_count(reduction.count, transport.rank(), transport.ranks()));
  StateWords words;
  const CollectiveState state{residual, owned, &words};
  CollectiveOptions options = reduction.options();
  if (reduction.has_feedback()) options.state = &state;
  std::vector<Bytes> all;
  for (int call = 0; call < calls; ++call) {
    all.push_back(reduction.gradient(transport.rank()));
    allreduce(transport, ValueSpan(all.back().data(), reduction.count, reduction.dtype), options);
  }
  return all;
}

}  // namespace

std::string Reduction::text() const {
  return codec + ", " + std::string(algorithm_name(algorithm)) + ", " + std::to_string(count) +
         " values of " + std::string(dtype_name(dtype));
}

Bytes Reduction::gradient(int rank) const {
  constexpr std::uint64_t kRanks = 1000;
  const std::vector<float> values =
      testing::gaussian(count, seed * kRanks + static_cast<std::uint64_t>(rank) + 1);
  return dtype == Dtype::kF32 ? bytes_of(std::as_bytes(std::span(values))) : narrowed(values);
}

CollectiveOptions Reduction::options() const {
  constexpr std::size_t kChunk = 200'000;  // so long gradients take several chunks
  return {.codec = codec, .algorithm = algorithm, .hosts = hosts, .chunk_count = kChunk};
}

std::vector<Bytes> reduced_on_cpu(const Reduction& reduction, int ranks, int calls) {
  std::vector<Bytes> results;
  run_ranks(ranks, {}, [&](Transport& transport) {
    auto own = calls_on_cpu(reduction, transport, calls);
    if (transport.rank() == 0) results = std::move(own);
  });
  return results;
}

DeviceReduction::DeviceReduction(const Reduction& reduction, Transport& transport,
                                 const Stream& stream)
    : reduction_(reduction),
      transport_(transport),
      stream_(stream),
      input_(to_device(reduction.gradient(transport.rank()))),
      values_(input_.bytes(), Memory::kDevice),
      options_(reduction_.options()) {
  options_.workspace = &workspace_;
  if (reduction_.has_feedback()) make_state();
}

void DeviceReduction::make_state() {
  const std::size_t owned = owned_count(reduction_.count, transport_.rank(), transport_.ranks());
  residual_ = to_device(Bytes(reduction_.count * sizeof(float)));
  owner_residual_ = to_device(Bytes(owned * sizeof(float)));
  words_ = to_device(std::as_bytes(std::span(&kFirstWords, 1)));
  state_ = {.residual = residual_.values(reduction_.count, Dtype::kF32),
            .owner_residual = owner_residual_.values(owned, Dtype::kF32),
            .words = reinterpret_cast<StateWords*>(words_.pointer())};
  options_.state = &state_;
}

void DeviceReduction::draw(std::uint64_t seed) {
  reduction_.seed = seed;
  upload(input_.pointer(), reduction_.gradient(transport_.rank()));
}

void DeviceReduction::call() {
  const auto stream = static_cast<cudaStream_t>(stream_.view().handle);
  check_cuda(cudaMemcpyAsync(values_.pointer(), input_.pointer(), input_.bytes(),
                             cudaMemcpyDeviceToDevice, stream));
  allreduce(transport_, values_.values(reduction_.count, reduction_.dtype), options_,
            stream_.view());
}

void DeviceReduction::require_bits(const Bytes& expected) {
  stream_.synchronize();
  const Bytes found = to_host(values_);
  if (found == expected) return;
  const auto position = std::ranges::mismatch(found, expected).in1 - found.begin();
  throw Error(reduction_.text() + ": differs from the CPU's at byte " + std::to_string(position));
}

void DeviceReduction::require_bits_or_nan(const Bytes& expected) {
  stream_.synchronize();
  const Bytes found = to_host(values_);
  std::size_t missing = 0;
  for (std::size_t i = 0; i < reduction_.count; ++i) {
    float value;
    std::memcpy(&value, found.data() + i * sizeof value, sizeof value);
    missing += std::isnan(value);
    require(std::isnan(value) ||
                std::memcmp(&value, expected.data() + i * sizeof value, sizeof value) == 0,
            reduction_.text() + ": value " + std::to_string(i) + " is wrong and no NaN");
  }
  require(missing != 0, reduction_.text() + ": all values are there");
}

}  // namespace tersor::test
