// Errors of users and missing hardware are reported before any kernel is queued.

#include "kernels/blocktopk/device.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/event.h"
#include "tests/gpu/device_memory.h"

#include <atomic>
#include <thread>
#include <vector>

namespace tersor::test {
namespace {

int attribute(cudaDeviceAttr which) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, 0));
  return value;
}

std::string encode_error(ConstValueSpan gradient, ByteSpan frame, StreamView stream = {}) {
  const auto codec = make_codec("int8");
  const Segment segment{.count = gradient.count()};
  EncodeCall call{.segments = {&segment, 1}, .gradients = {&gradient, 1}};
  const Buffer workspace(64, Memory::kDevice);
  call.execution.workspace = workspace.span();
  call.execution.stream = stream;
  return error_of<InvalidArgumentError>([&] { codec->encode(call, frame); });
}

TEST(GpuErrors, RejectsHostPointerAsDeviceMemory) {
  if (attribute(cudaDevAttrPageableMemoryAccess) != 0)
    GTEST_SKIP() << "this device reads the host's memory";
  const std::vector<float> host(1000);
  const Buffer frame(4096, Memory::kDevice), gradient(4000, Memory::kDevice);
  std::vector<std::byte> host_frame(4096 + 16);
  auto* aligned =
      host_frame.data() + (16 - reinterpret_cast<std::uintptr_t>(host_frame.data()) % 16);
  const ConstValueSpan wrong(reinterpret_cast<const std::byte*>(host.data()), 1000, Dtype::kF32,
                             Memory::kDevice);
  EXPECT_NE(encode_error(wrong, frame.span()).find("the pointer is to host memory"),
            std::string::npos);
  EXPECT_NE(encode_error(gradient.values(1000, Dtype::kF32), {aligned, 4096})
                .find("the frame: device memory is expected"),
            std::string::npos);
}

TEST(GpuErrors, RejectsSegmentsOver16GiB) {
  const BlocktopkBlock block({.density = 0.25, .values = BlocktopkValues::kBf16});
  const std::size_t blocks = (std::size_t{1} << 32) / (block.high_words() + block.value_words());
  const Segment segments[] = {{.count = 4096}, {.count = blocks * BlocktopkBlock::kValues}};
  EXPECT_NE(error_of<InvalidArgumentError>([&] {
              kernels::blocktopk_device_encode({.segments = segments}, block, {});
            }).find("at most 16 GiB"),
            std::string::npos);
}

TEST(GpuErrors, RejectsCodecMemoryOnHost) {
  const auto codec = make_codec("lowrank");
  const Segment segment{.count = 64 * 64, .rows = 64, .columns = 64};
  const Plan plan = codec->plan({.segments = {&segment, 1}, .memory = Memory::kDevice});
  const Buffer gradient(4 * segment.count, Memory::kDevice), raw(4 * 4 * 64, Memory::kDevice),
      workspace(plan.workspace_bytes, Memory::kDevice),
      round_state(plan.round_state_bytes, Memory::kDevice);
  std::vector<float> host(4 * 64);
  const SegmentMemory memory{host, host};
  const ConstValueSpan values = gradient.values(segment.count, Dtype::kF32);
  EncodeCall call{.segments = {&segment, 1}, .gradients = {&values, 1}, .memories = {&memory, 1}};
  call.execution.workspace = workspace.span();
  call.execution.round_state = round_state.span();
  const std::string error = error_of<InvalidArgumentError>(
      [&] { codec->encode_native(call, 1.0f, raw.values(4 * 64, Dtype::kF32)); });
  EXPECT_NE(error.find("the codec's memory of segment 0 is on the host"), std::string::npos)
      << error;
}

TEST(GpuErrors, RejectsStreamOfAnotherDevice) {
  int devices = 0;
  check_cuda(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "there is one device only";
  check_cuda(cudaSetDevice(1));
  const Stream foreign;
  check_cuda(cudaSetDevice(0));
  const Buffer frame(4096, Memory::kDevice), gradient(4000, Memory::kDevice);
  const std::string error =
      encode_error(gradient.values(1000, Dtype::kF32), frame.span(), foreign.view());
  EXPECT_NE(error.find("the stream belongs to device 1"), std::string::npos) << error;
}

TEST(GpuErrors, RejectsImpossibleSizes) {
  EXPECT_THROW(Buffer(std::size_t{1} << 55, Memory::kDevice), OutOfMemoryError);
  const Buffer still_works(4096, Memory::kDevice);
  EXPECT_NE(still_works.pointer(), nullptr);
  const Segment segment{.count = std::size_t{1} << 40};
  EXPECT_THROW(
      make_codec("topk:density=0.5")->plan({.segments = {&segment, 1}, .memory = Memory::kDevice}),
      InvalidArgumentError);
}

TEST(GpuErrors, KeepsEarlierCudaErrorOfCaller) {
  const std::vector<float> gradient(5'000, 1.0f);
  const Stream stream;
  for (const char* spec : {"int8+ef", "topk:density=0.1+ef"}) {  // one launch, and several
    DeviceCodec untouched(spec, gradient), after_error(spec, gradient);
    untouched.encode(stream);
    EXPECT_NE(cudaSetDevice(1 << 20), cudaSuccess);
    EXPECT_NO_THROW(after_error.encode(stream)) << spec;
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice) << spec;
    stream.synchronize();
    EXPECT_EQ(after_error.frame(), untouched.frame()) << spec;
  }
}

TEST(GpuErrors, ThrownErrorsClearLastCudaError) {
  EXPECT_THROW(Buffer(std::size_t{1} << 55, Memory::kDevice), OutOfMemoryError);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_THROW(kernels::check_cuda(cudaSetDevice(1 << 20), "choosing a device"), CudaError);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(GpuErrors, UnfinishedEventLeavesNoCudaError) {
  const Stream stream;
  std::atomic<bool> goes_on{false};
  check_cuda(cudaLaunchHostFunc(
      static_cast<cudaStream_t>(stream.view().handle),
      [](void* flag) {
        while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
      },
      &goes_on));
  kernels::Event event;
  event.record(stream.view());
  EXPECT_FALSE(event.done());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  goes_on = true;
  stream.synchronize();
  EXPECT_TRUE(event.done());
}

TEST(GpuErrors, ReportsMixedMemory) {
  std::vector<float> host(300);
  const Buffer gradient(1200, Memory::kDevice), frame(2048, Memory::kDevice);
  const Segment segment{.count = 300};
  const ConstValueSpan values = gradient.values(300, Dtype::kF32);
  const SegmentState state{ConstValueSpan(host), ValueSpan(host)};
  EncodeCall call{.segments = {&segment, 1}, .gradients = {&values, 1}, .states = {&state, 1}};
  const Buffer workspace(64, Memory::kDevice);
  call.execution.workspace = workspace.span();
  const std::string error =
      error_of<InvalidArgumentError>([&] { make_codec("int8+ef")->encode(call, frame.span()); });
  EXPECT_NE(error.find("the residual of segment 0 is on the host"), std::string::npos) << error;
}

}  // namespace
}  // namespace tersor::test
