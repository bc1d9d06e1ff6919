// See device_memory.h.

#include "tests/gpu/device_memory.h"

#include <algorithm>
#include <cstring>

namespace tersor::test {
namespace {

constexpr StateWords kFirstWords;

/// A segment with the largest number of rows up to 128 dividing the count.
Segment shaped(std::size_t count) {
  std::size_t rows = 128;
  while (count % rows != 0) --rows;
  return {.count = count, .parameter = 3, .rows = rows, .columns = count / rows};
}

/// Bytes of a frame or, without frames, of the largest round's raw values.
std::size_t space_of(const Plan& plan) {
  std::size_t bytes = plan.frame_bytes;
  if (has_frames(plan)) return bytes;
  for (const Round& round : plan.rounds)
    bytes = std::max(bytes, round.native_count * dtype_bytes(round.native_dtype));
  return bytes;
}

}  // namespace

bool has_frames(const Plan& plan) {
  return std::ranges::count(plan.rounds.front().exchanges, Exchange::kGather) != 0;
}

void upload(void* device, ConstByteSpan host) {
  check_cuda(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice));
  check_cuda(cudaStreamSynchronize(nullptr));
}

Buffer to_device(ConstByteSpan host) {
  Buffer copy(host.size(), Memory::kDevice);
  upload(copy.pointer(), host);
  return copy;
}

std::vector<std::byte> to_host(const Buffer& device) {
  std::vector<std::byte> copy(device.bytes());
  check_cuda(cudaMemcpy(copy.data(), device.pointer(), copy.size(), cudaMemcpyDeviceToHost));
  return copy;
}

DeviceCodec::DeviceCodec(std::string_view spec, const std::vector<float>& gradient,
                         Checksum checksum)
    : codec_(make_codec(spec)),
      segment_(shaped(gradient.size())),
      identity_{.signature = 5, .checksum = checksum},
      plan_(codec_->plan(
          {.segments = {&segment_, 1}, .contributions = 2, .memory = Memory::kDevice})),
      gradient_(to_device(std::as_bytes(std::span(gradient)))),
      residual_(to_device(std::vector<std::byte>(gradient_.bytes()))),
      output_(to_device(std::vector<std::byte>(gradient_.bytes()))),
      memory_(to_device(std::vector<std::byte>(codec_->memory_count(segment_) * sizeof(float)))),
      words_(to_device(std::as_bytes(std::span(&kFirstWords, 1)))),
      frame_(to_device(std::vector<std::byte>(space_of(plan_)))),
      sum_(to_device(std::vector<std::byte>(plan_.frame_bytes))),
      workspace_(plan_.workspace_bytes, Memory::kDevice),
      round_state_(plan_.round_state_bytes, Memory::kDevice) {}

Execution DeviceCodec::execution(const Stream& stream) const {
  Execution execution;
  execution.stream = stream.view();
  execution.workspace = workspace_.span();
  execution.round_state = round_state_.span();
  execution.memory = Memory::kDevice;
  return execution;
}

void DeviceCodec::encode(const Stream& stream) {
  const ConstValueSpan gradient = gradient_.values(segment_.count, Dtype::kF32);
  const ValueSpan residual = residual_.values(segment_.count, Dtype::kF32);
  const SegmentState state{residual, residual};
  const SegmentMemory memory = this->memory();
  auto* words = reinterpret_cast<StateWords*>(words_.pointer());
  EncodeCall call{.segments = {&segment_, 1}, .gradients = {&gradient, 1}};
  if (codec_->has_feedback()) call.states = {&state, 1};
  if (!memory.out.empty()) call.memories = {&memory, 1};
  call.words = call.words_out = words;
  call.random.key = 17;
  call.identity = identity_;
  call.execution = execution(stream);
  if (!has_frames()) return encode_rounds(call, stream);
  codec_->encode(call, frame_.span());
}

SegmentMemory DeviceCodec::memory() const {
  const ValueSpan memory = memory_.values(codec_->memory_count(segment_), Dtype::kF32);
  return {memory, memory};
}

ValueSpan DeviceCodec::raw(std::size_t round) const {
  return frame_.values(plan_.rounds[round].native_count, plan_.rounds[round].native_dtype);
}

void DeviceCodec::encode_rounds(EncodeCall& call, const Stream& stream) {
  const ValueSpan output = output_.values(segment_.count, Dtype::kF32);
  for (std::size_t round = 0; round < plan_.rounds.size(); ++round) {
    call.identity.round = static_cast<std::uint8_t>(round);
    codec_->encode_native(call, 1.0f, raw(round));
    if (round + 1 == plan_.rounds.size()) return;
    DecodeCall back = decode_call(stream, output);
    back.identity = call.identity;
    codec_->absorb(back, raw(round));
  }
}

DecodeCall DeviceCodec::decode_call(const Stream& stream, const ValueSpan& output) const {
  return {.segments = {&segment_, 1},
          .frames = {},
          .outputs = {&output, 1},
          .identity = identity_,
          .execution = execution(stream)};
}

void DeviceCodec::decode(const Stream& stream) {
  const ConstByteSpan frame = frame_.span();
  const ValueSpan output = output_.values(segment_.count, Dtype::kF32);
  DecodeCall call = decode_call(stream, output);
  if (has_frames()) {
    call.frames = {&frame, 1};
    return codec_->decode(call);
  }
  const SegmentMemory memory = this->memory();
  if (!memory.out.empty()) call.memories = {&memory, 1};
  call.identity.round = static_cast<std::uint8_t>(plan_.rounds.size() - 1);
  codec_->decode_native(call, raw(call.identity.round));
}

void DeviceCodec::reduce(const Stream& stream) {
  const ConstByteSpan frames[2] = {frame_.span(), frame_.span()};
  codec_->reduce({.segments = {&segment_, 1},
                  .frames = frames,
                  .random = {.key = 18},
                  .identity = identity_,
                  .execution = execution(stream)},
                 sum_.span());
}

StateWords DeviceCodec::words() const {
  const std::vector<std::byte> bytes = to_host(words_);
  StateWords words;
  std::memcpy(&words, bytes.data(), sizeof words);
  return words;
}

bool DeviceCodec::reduces() const {
  const auto& exchanges = plan_.rounds.front().exchanges;
  return std::ranges::find(exchanges, Exchange::kTwoShot) != exchanges.end();
}

void Graph::Destroy::operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
void Graph::Destroy::operator()(cudaGraphExec_t executable) const {
  cudaGraphExecDestroy(executable);
}

Graph::Graph(const Stream& stream, const std::function<void()>& body) {
  const auto handle = static_cast<cudaStream_t>(stream.view().handle);
  check_cuda(cudaStreamBeginCapture(handle, cudaStreamCaptureModeGlobal));
  cudaGraph_t graph = nullptr;
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(handle, &graph);
    graph_.reset(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(handle, &graph));
  graph_.reset(graph);
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaGraphInstantiate(&executable, graph, 0));
  executable_.reset(executable);
}

void Graph::replay(const Stream& stream) const {
  check_cuda(cudaGraphLaunch(executable_.get(), static_cast<cudaStream_t>(stream.view().handle)));
}

}  // namespace tersor::test
