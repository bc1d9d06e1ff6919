// Lets each CUDA runtime call of the library fail once: memory, streams and codecs.
#include "kernels/device/device_memory.h"
#include "kernels/device/event.h"
#include "tests/gpu/device_memory.h"
#include "tests/gpu/injected.h"

#include <unistd.h>

#include <cstdio>

namespace tersor::test {
namespace {

using Bytes = std::vector<std::byte>;

/// Errors of a single call, and errors breaking the device: out of memory, driver too old,
/// operation not supported; illegal address, device lost, launch failure.
constexpr cudaError_t kInjectedErrors[] = {cudaErrorMemoryAllocation,   cudaErrorInsufficientDriver,
                                           cudaErrorNotSupported,       cudaErrorIllegalAddress,
                                           cudaErrorDevicesUnavailable, cudaErrorLaunchFailure};

class Owners : public Scenario {
 public:
  void run() override {
    const Buffer buffer(5000, Memory::kDevice);
    const kernels::PinnedBuffer pinned(100);
    const Stream stream, other;
    kernels::Event event;
    kernels::zero_bytes(buffer.pointer(), buffer.bytes(), stream.view());
    event.record(stream.view());
    event.hold(other.view());
    kernels::copy_bytes(pinned.pointer(), buffer.pointer(), 100, other.view());
    other.synchronize();
    (void)event.done();
    result_.assign(pinned.pointer(), pinned.pointer() + 100);
  }
  Bytes result() override { return result_; }

 private:
  Bytes result_;
};

enum class How { kQueued, kCaptured };

/// Encodes, reduces (if supported) and decodes.
class Calls : public Scenario {
 public:
  Calls(const std::string& spec, How how)
      : how_(how), codec_(spec, gaussian(1111, 3)), is_reduced_(codec_.reduces()) {}

  void run() override {
    if (how_ == How::kQueued) {
      queue();
    } else {
      Graph(stream_, [this] { queue(); }).replay(stream_);
    }
    stream_.synchronize();
  }
  Bytes result() override {
    Bytes all = codec_.frame();
    for (const Bytes& more :
         {codec_.output(), codec_.residual(), is_reduced_ ? codec_.sum() : Bytes()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }

 private:
  void queue() {
    codec_.encode(stream_);
    if (is_reduced_) codec_.reduce(stream_);
    codec_.decode(stream_);
  }

  const How how_;
  const Stream stream_;
  DeviceCodec codec_;
  const bool is_reduced_;
};

/// Encodes and decodes raw values.
class NativeCalls : public Scenario {
 public:
  explicit NativeCalls(const std::string& spec)
      : codec_(make_codec(spec)),
        gradient_(to_device(std::as_bytes(std::span<const float>(gaussian(kCount, 4))))),
        raw_(to_device(Bytes(4 * kCount))),
        output_(to_device(Bytes(4 * kCount))),
        workspace_(64, Memory::kDevice) {}

  void run() override {
    const Segment segment{.count = kCount};
    const Plan plan = codec_->plan({.segments = {&segment, 1}, .memory = Memory::kDevice});
    const ConstValueSpan gradient = gradient_.values(kCount, Dtype::kF32);
    const ValueSpan output = output_.values(kCount, Dtype::kF32);
    const ValueSpan raw = raw_.values(plan.rounds[0].native_count, plan.rounds[0].native_dtype);
    const Execution execution{
        .stream = stream_.view(), .workspace = workspace_.span(), .memory = Memory::kDevice};
    codec_->encode_native(
        {.segments = {&segment, 1}, .gradients = {&gradient, 1}, .execution = execution}, 0.5f,
        raw);
    codec_->decode_native(
        {.segments = {&segment, 1}, .outputs = {&output, 1}, .execution = execution}, raw);
    stream_.synchronize();
  }
  Bytes result() override { return to_host(output_); }

 private:
  static constexpr std::size_t kCount = 1111;
  const std::shared_ptr<const Codec> codec_;
  const Stream stream_;
  const Buffer gradient_, raw_, output_, workspace_;
};

TEST_F(InjectedErrors, MemoryStreamsAndEvents) {
  for (const cudaError_t error : kInjectedErrors)
    expect_errors({"owners", [] { return std::make_unique<Owners>(); }}, error);
}

TEST_F(InjectedErrors, CodecCalls) {
  for (const char* spec :
       {"none", "bf16", "f16+ef", "int8", "int8:rounding=stochastic+ef", "int4", "int4+ef",
        "topk:density=0.1", "topk:density=0.1+ef", "lowrank:rank=1+ef"})
    for (const cudaError_t error : kInjectedErrors)
      expect_errors({spec, [spec] { return std::make_unique<Calls>(spec, How::kQueued); }}, error);
}

TEST_F(InjectedErrors, CapturedCodecCalls) {
  for (const char* spec : {"none", "int8+ef", "topk:density=0.1"})
    for (const cudaError_t error : kInjectedErrors)
      expect_errors(
          {std::string(spec) + ", captured",
           [spec] { return std::make_unique<Calls>(spec, How::kCaptured); }, Callers::kTestToo},
          error);
}

TEST_F(InjectedErrors, NativeCodecCalls) {
  for (const char* spec : {"none", "bf16", "f16"})
    for (const cudaError_t error : kInjectedErrors)
      expect_errors({spec, [spec] { return std::make_unique<NativeCalls>(spec); }}, error);
}

/// The path of this program.
std::string own_path() {
  char path[4096] = {};
  return readlink("/proc/self/exe", path, sizeof path - 1) > 0 ? path : "";
}

/// The output of a separate process with one failing CUDA call.
std::string output_of_process(std::size_t call, cudaError_t error) {
  const std::string fail = "any:" + std::to_string(call) + "=" + std::to_string(error);
  const std::string command = "PTX_DEVICE_FAIL=" + fail + " timeout 60 '" + own_path() +
                              "' --gtest_filter=GpuFirstCalls.* 2>&1";
  std::string output;
  char line[512];
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  while (pipe != nullptr && std::fgets(line, sizeof line, pipe.get()) != nullptr) output += line;
  return output;
}

/// Makes the calls required once per process.
TEST(GpuFirstCalls, CompleteWithoutErrors) {
  Calls calls("int8", How::kQueued);
  EXPECT_NO_THROW(calls.run());
}

// Some of these calls come from main() of the tests.
TEST_F(InjectedErrors, FirstCallsOfAProcess) {
  for (const cudaError_t error :
       {cudaErrorMemoryAllocation, cudaErrorInsufficientDriver, cudaErrorIllegalAddress})
    for (std::size_t call = 1; call <= 24; ++call) {
      const std::string output = output_of_process(call, error);
      const bool is_said = output.find(cudaGetErrorString(error)) != std::string::npos ||
                           output.find("needs an NVIDIA driver") != std::string::npos ||
                           output.find(" bytes of ") != std::string::npos ||
                           output.find("[  PASSED  ] 1 test") != std::string::npos;
      EXPECT_TRUE(is_said) << "error " << error << " in call " << call << ":\n" << output;
      EXPECT_EQ(output.find("CMAKE_CUDA_ARCHITECTURES"), std::string::npos) << output;
    }
}

}  // namespace
}  // namespace tersor::test
