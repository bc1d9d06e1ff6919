// Residuals on a device, and encode with feedback.
#pragma once

#include <tersor/codec.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "bench/device/operation.h"

namespace tersor::bench {

/// A residual and its words on the host.
struct HostState {
  Buffer residual;
  StateWords words;

  ValueSpan values() const;
  SegmentState in_place() const;
};

/// Residuals of f32 on a device, one for each set of buffers, all with the same values at first,
/// and the words of all.
class DeviceState {
 public:
  DeviceState(const DeviceInput& input, std::size_t sets);

  ConstValueSpan initial() const { return initial_.values(count_, Dtype::kF32); }
  HostState on_host() const;
  SegmentState in_place(std::size_t call) const;
  ValueSpan residual(std::size_t call) const { return residuals_.values(call, Dtype::kF32); }
  StateWords* words() const { return reinterpret_cast<StateWords*>(words_.pointer()); }

  /// Throws Error unless the first residual holds the host's bits.
  void require_same_as(const HostState& state, std::string_view what) const;

 private:
  std::size_t count_;
  StreamView stream_;
  Buffer initial_;
  RotatedBuffer residuals_;
  Buffer words_;
};

/// ||decoded - p|| / ||p||, p = gradient + residual.
double feedback_error(ConstValueSpan gradient, ConstValueSpan residual, ConstValueSpan decoded);

/// The same error of what the codec sends for that gradient on the host.
double host_feedback_error(const DeviceInput& input, ConstValueSpan residual);

/// "encode+feedback" and, for top-k, "encode+feedback, far miss": the latter on values of nearly
/// one magnitude, whose k-th can be found by its digits only. Throws InvalidArgument for other
/// names.
std::unique_ptr<DeviceOperation> make_feedback_operation(std::string_view name,
                                                         const DeviceInput& input);

}  // namespace tersor::bench
