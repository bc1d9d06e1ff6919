// Plain device memory and captured graphs for tests that show what managed memory would hide.
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

/// Copies the host's bytes to the device, and waits: CUDA's own call returns once it has read them,
/// and a stream that is not the default one could be earlier.
void upload(void* device, ConstByteSpan host);
/// A copy of the host's bytes on the device.
Buffer to_device(ConstByteSpan host);
/// The bytes of device memory, once nothing is queued any more.
std::vector<std::byte> to_host(const Buffer& device);

/// Whether all of a plan's rounds may go as frames.
bool has_frames(const Plan& plan);

/// One codec with one segment in plain device memory, called on a stream. Of one that sends no
/// frames all rounds are run with its own bare values, the last of which stand in for a frame.
class DeviceCodec {
 public:
  DeviceCodec(std::string_view spec, const std::vector<float>& gradient,
              Checksum checksum = Checksum::kOn);

  void encode(const Stream& stream);
  void decode(const Stream& stream);
  void reduce(const Stream& stream);  ///< its own frame, twice

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
  ValueSpan bare(std::size_t round) const;
  DecodeCall decode_call(const Stream& stream, const ValueSpan& output) const;
  void encode_rounds(EncodeCall& call, const Stream& stream);

  std::shared_ptr<const Codec> codec_;
  Segment segment_;
  FrameIdentity identity_;
  Plan plan_;
  Buffer gradient_, residual_, output_, memory_, words_, frame_, sum_, workspace_, kept_;
};

/// What `body` queues, as a graph. Capture forbids whatever would wait or allocate, in all threads.
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
