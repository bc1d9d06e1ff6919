// An operation on a device as `tersor-bench codecs --device cuda` times it. Each holds what it
// yields against the CPU's codec, byte for byte, before it is timed; calls take turns on several
// sets of buffers, so that none finds its input in the cache.
#pragma once

#include <tersor/span.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/codec_operations.h"
#include "bench/device/baselines.h"
#include "bench/device/gpu.h"
#include "bench/samples.h"

namespace tersor::bench {

/// What an operation works on: the gradient on the host, from which it makes its own on the device.
struct DeviceInput {
  OperationInput host;
  const SampleSource* source = nullptr;
  StreamView stream;
  Gpu gpu;

  PlanFor plan_on_host(std::size_t contributions = 1) const;
  PlanFor plan_on_device(std::size_t contributions = 1) const;
};

/// How many ranks' frames "reduce" adds on a device.
inline constexpr std::size_t kDeviceReducedFrames = 8;

class DeviceOperation {
 public:
  explicit DeviceOperation(const DeviceInput& input) : input_(input) {}
  virtual ~DeviceOperation() = default;
  DeviceOperation(const DeviceOperation&) = delete;
  DeviceOperation& operator=(const DeviceOperation&) = delete;

  /// Runs once. Returns the relative error of what was encoded; throws Error where the result is
  /// not what it should be.
  virtual double check() = 0;
  /// Queues one call.
  virtual void queue() = 0;
  /// How the operation is timed: call after call, unless it says otherwise.
  virtual TimedCall timed() {
    return {"operation", [this] { queue(); }};
  }
  /// What is timed in between; the first is what the ratio is to.
  virtual std::vector<TimedCall> references() = 0;

  std::size_t useful_bytes() const { return useful_bytes_; }
  std::size_t payload_bytes() const { return payload_bytes_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

 protected:
  std::size_t sets() const;
  std::vector<TimedCall> memory_references(WithMemset with_memset = WithMemset::kNo) const;

  DeviceInput input_;
  std::size_t useful_bytes_ = 0;  ///< the least that a call must move; known once it is made
  std::size_t payload_bytes_ = 0;
  std::size_t workspace_bytes_ = 0;
};

/// Gradients on a device. As on the host, each call takes other values of a longer one.
class DeviceGradients {
 public:
  DeviceGradients(const DeviceInput& input, std::size_t sets);
  ConstValueSpan at(std::size_t call) const;

 private:
  std::size_t count_;
  Dtype dtype_;
  RotatedBuffer sets_;
};

/// Throws Error unless the device's bytes are the host's.
void require_same(ConstByteSpan host, ConstByteSpan device, StreamView stream,
                  std::string_view what);

}  // namespace tersor::bench
