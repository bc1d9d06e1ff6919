// Plain device memory and captured graphs, for tests of errors hidden by managed memory.
#pragma once

#include "tests/support/codec_harness.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <tersor/buffer.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

namespace tersor::test {

inline void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw CudaError(cudaGetErrorString(status));
}

/// Copies the host's bytes to the device and waits. cudaMemcpy alone may return before the copy
/// ends, and another stream than the default stream could read the memory too early.
void upload(void* device, ConstByteSpan host);
/// Returns a copy of the host's bytes on the device.
Buffer to_device(ConstByteSpan host);
/// Waits for all queued work and returns the bytes of device memory.
std::vector<std::byte> to_host(const Buffer& device);

/// True if all rounds of a plan may use frames.
bool has_frames(const Plan& plan);

/// A codec with one segment in plain device memory, called on a stream. A native-only codec runs
/// all rounds with its own raw values; the raw values of the last round replace the frame.
class DeviceCodec {
 public:
  DeviceCodec(std::string_view spec, const std::vector<float>& gradient,
              Checksum checksum = Checksum::kOn);

  void encode(const Stream& stream);
  void decode(const Stream& stream);
  void reduce(const Stream& stream);  ///< with the own frame twice

  std::vector<std::byte> frame() const { return to_host(frame_); }
  std::vector<std::byte> sum() const { return to_host(sum_); }
  std::vector<std::byte> output() const { return to_host(output_); }
  std::vector<std::byte> residual() const { return to_host(residual_); }
  StateWords words() const;
  bool reduces() const;

 private:
  Execution execution(const Stream& stream) const;
  bool has_frames() const { return test::has_frames(plan_); }
  SegmentMemory memory() const;
  ValueSpan raw(std::size_t round) const;
  DecodeCall decode_call(const Stream& stream, const ValueSpan& output) const;
  void encode_rounds(EncodeCall& call, const Stream& stream);

  std::shared_ptr<const Codec> codec_;
  Segment segment_;
  FrameIdentity identity_;
  Plan plan_;
  Buffer gradient_, residual_, output_, memory_, words_, frame_, sum_, workspace_, round_state_;
};

/// The work queued by `body`, as a graph. The capture forbids waits and allocations in all threads.
class Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& body);

  void replay(const Stream& stream) const;

 private:
  struct Destroy {
    void operator()(cudaGraph_t graph) const;
    void operator()(cudaGraphExec_t executable) const;
  };
  template <class Handle>
  using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

  Owner<cudaGraph_t> graph_;
  Owner<cudaGraphExec_t> executable_;
};

}  // namespace tersor::test
