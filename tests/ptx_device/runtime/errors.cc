// Functions returning errors and descriptions of errors.
#include "tests/ptx_device/runtime/api.h"

#include <map>
#include <string>

using namespace ptx;

namespace {

const std::map<cudaError_t, const char*>& texts() {
  static const auto* texts = new std::map<cudaError_t, const char*>{
      {cudaSuccess, "no error"},
      {cudaErrorInvalidValue, "invalid argument"},
      {cudaErrorMemoryAllocation, "out of memory"},
      {cudaErrorInvalidConfiguration, "invalid configuration argument"},
      {cudaErrorInvalidDeviceFunction, "invalid device function"},
      {cudaErrorNoDevice, "no CUDA-capable device is detected"},
      {cudaErrorInvalidDevice, "invalid device ordinal"},
      {cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"},
      {cudaErrorInvalidResourceHandle, "invalid resource handle"},
      {cudaErrorNotReady, "device not ready"},
      {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
      {cudaErrorMisalignedAddress, "misaligned address"},
      {cudaErrorIllegalInstruction, "an illegal instruction was encountered"},
      {cudaErrorLaunchFailure, "unspecified launch failure"},
      {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
      {cudaErrorStreamCaptureInvalidated,
       "operation failed due to a previous error during capture"},
      {cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"},
      {cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"},
      {cudaErrorStreamCaptureImplicit,
       "operation would make the legacy stream depend on a capturing blocking stream"},
      {cudaErrorStreamCaptureWrongThread,
       "attempt to terminate a thread-local capture sequence from another thread"},
      {cudaErrorInitializationError, "initialization error"},
      {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
      {cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"},
      {cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"},
      {cudaErrorLaunchOutOfResources, "too many resources requested for launch"},
      {cudaErrorLaunchTimeout, "the launch timed out and was terminated"},
      {cudaErrorAssert, "device-side assert triggered"},
      {cudaErrorUnknown, "unknown error"},
      {cudaErrorIllegalState, "the operation cannot be performed in the present state"},
  };
  return *texts;
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error();
  forget_last_error();
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error(); }

const char* cudaGetErrorName(cudaError_t error) {
  static thread_local std::string text;
  text = "cudaError" + std::to_string(static_cast<int>(error));
  return text.c_str();
}

const char* cudaGetErrorString(cudaError_t error) {
  const auto found = texts().find(error);
  return found == texts().end() ? cudaGetErrorName(error) : found->second;
}

}  // extern "C"
