// Implements device.h and the stream of <tersor/stream.h>.
#include "kernels/device/device.h"

#include <tersor/error.h>

#include <chrono>
#include <thread>

#if TERSOR_HAS_CUDA
#include "kernels/device/cuda_error.h"
#include "kernels/device/marks.h"

#include <atomic>
#endif

namespace tersor {
#if TERSOR_HAS_CUDA

namespace kernels {
namespace {

constexpr const char* kHostMemoryHint = "; use host memory";

/// Throws if no device can be used at all.
void require_driver() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) (void)cudaGetLastError();  // clears the error, which is reported here
  if (status == cudaErrorInsufficientDriver)
    throw CudaError(std::string("device memory needs an NVIDIA driver, but this machine has none, "
                                "or one older than CUDA ") +
                    std::to_string(CUDART_VERSION / 1000) + "." +
                    std::to_string(CUDART_VERSION % 1000 / 10) + kHostMemoryHint);
  if (status == cudaErrorNoDevice || (status == cudaSuccess && devices == 0))
    throw CudaError(std::string("device memory needs an NVIDIA GPU, but this machine has none") +
                    kHostMemoryHint);
  check_cuda(status, "looking for devices");
}

int attribute_of(int device, cudaDeviceAttr which) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device), "asking for a device's attribute");
  return value;
}

/// True if the error means that the program contains no code for the device.
bool is_missing_image(cudaError_t status) {
  return status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidKernelImage ||
         status == cudaErrorInvalidDeviceFunction || status == cudaErrorInvalidPtx ||
         status == cudaErrorUnsupportedPtxVersion || status == cudaErrorJitCompilerNotFound ||
         status == cudaErrorJitCompilationDisabled;
}

/// Throws if this build has no kernel for the device.
void require_image(int device) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, any_kernel());
  if (!is_missing_image(status)) return check_cuda(status, "loading the kernels");
  (void)cudaGetLastError();
  const int major = attribute_of(device, cudaDevAttrComputeCapabilityMajor);
  const int minor = attribute_of(device, cudaDevAttrComputeCapabilityMinor);
  throw CudaError("device " + std::to_string(device) + " has compute capability " +
                  std::to_string(major) + "." + std::to_string(minor) +
                  ", but this build of Tersor holds kernels for " TERSOR_CUDA_ARCHITECTURES
                  "; build it with -DCMAKE_CUDA_ARCHITECTURES=" +
                  std::to_string(10 * major + minor) + " (" + cudaGetErrorString(status) + ")");
}

}  // namespace

bool has_cuda() { return true; }

void require_device() {
  static std::atomic<std::uint64_t> known{0};  // one bit for each of the first 64 devices
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  const std::uint64_t bit = status == cudaSuccess && device < 64 ? std::uint64_t{1} << device : 0;
  if ((known & bit) != 0) return;
  require_driver();
  check_cuda(status, "asking for the current device");
  require_image(device);
  known |= bit;
}

void check_device_pointer(const void* pointer) {
  cudaPointerAttributes attributes{};
  const cudaError_t status = cudaPointerGetAttributes(&attributes, pointer);
  if (status == cudaErrorInvalidValue) {
    (void)cudaGetLastError();  // reported below: the type stays unregistered
  } else {
    check_cuda(status, "asking whose memory a pointer is to");
  }
  const int device = current_device();
  if (attributes.type == cudaMemoryTypeUnregistered) {
    if (attribute_of(device, cudaDevAttrPageableMemoryAccess) != 0) return;
    throw InvalidArgumentError("device memory is expected, but the pointer is to host memory");
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device)
    throw InvalidArgumentError("the memory is on device " + std::to_string(attributes.device) +
                               ", but the current device is " + std::to_string(device) +
                               "; call cudaSetDevice first");
}

void check_stream(StreamView stream) {
  const auto handle = static_cast<cudaStream_t>(stream.handle);
  int device = 0, own = 0;
  // Other queries are skipped during a capture, because a query could end the capture.
  if (handle == nullptr || capture_of(stream) != 0) return;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  check_cuda(cudaStreamGetDevice(handle, &own), "asking for a stream's device");
  if (own != device)
    throw InvalidArgumentError("the stream belongs to device " + std::to_string(own) +
                               ", but the current device is " + std::to_string(device) +
                               "; call cudaSetDevice first");
}

// The legacy default stream cannot be captured.
std::uint64_t capture_of(StreamView stream) {
  if (stream.handle == nullptr) return 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  check_cuda(cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream.handle), &status, &capture),
             "asking whether a stream is captured");
  return status == cudaStreamCaptureStatusNone ? 0 : capture;
}

void ignore_captures() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "choosing a mode of capture");
}

void synchronize(StreamView stream) {
  check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle)),
             "waiting for a stream");
}

int current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  return device;
}

std::string device_name() {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, current_device()), "asking for a device's name");
  return properties.name;
}

void use_device(int device) { check_cuda(cudaSetDevice(device), "choosing a device"); }

}  // namespace kernels

Stream::Stream() {
  kernels::require_device();
  cudaStream_t stream = nullptr;
  kernels::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  handle_ = stream;
}

Stream::~Stream() {
  if (handle_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}

void Stream::synchronize() const { kernels::synchronize(view()); }

#else

namespace kernels {

bool has_cuda() { return false; }

void require_device() {
  throw CudaError(
      "device memory needs CUDA, but this build of Tersor has no CUDA; build it with nvcc, or use "
      "host memory");
}

void check_device_pointer(const void*) { require_device(); }
void check_stream(StreamView) { require_device(); }
std::uint64_t capture_of(StreamView) { return 0; }
void synchronize(StreamView) { require_device(); }
void ignore_captures() { require_device(); }
int current_device() { return 0; }
void use_device(int) { require_device(); }
std::string device_name() { return "no device"; }

}  // namespace kernels

Stream::Stream() { kernels::require_device(); }
Stream::~Stream() = default;
void Stream::synchronize() const {}

#endif

void kernels::try_use_device(int device) noexcept {
  try {
    use_device(device);
  } catch (const std::exception&) {
    // later calls on the device report the error
  }
}

kernels::DeviceScope::DeviceScope(int device)
    : device_(device), before_(device < 0 ? device : current_device()) {
  if (before_ != device_) use_device(device_);
}

kernels::DeviceScope::~DeviceScope() {
  if (before_ != device_) try_use_device(before_);
}

void kernels::sleep_between_polls() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

}  // namespace tersor
