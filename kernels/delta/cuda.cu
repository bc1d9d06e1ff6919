// Launches the kernels of weight deltas: one kernel per width of a value.

#include "kernels/delta/body.cuh"

#include <tersor/align.h>

namespace tersor::kernels {
namespace {

template <template <typename> class Kernel, typename Change>
void launch(const DeltaDeviceTensor& tensor, StreamView stream, const Change& change) {
  visit_delta_width(delta_dtype_bytes(tensor.dtype), [&]<typename Bits>(Bits) {
    Kernel<Bits> kernel{};
    kernel.tensor = tensor;
    kernel.blocks = static_cast<unsigned>(ceil_div(tensor.count, kDeltaBlock));
    if (kernel.blocks == 0) return;
    const unsigned exponent_bits = delta_exponent_bits(tensor.dtype);
    kernel.is_float = exponent_bits != 0;
    kernel.mantissa_bits = 8 * delta_dtype_bytes(tensor.dtype) - 1 - exponent_bits;
    change(kernel);
    Queue(stream).launch_tasks(kernel, kernel.blocks, 1);
  });
}

}  // namespace

void delta_device_decode(const DeltaDeviceTensor& tensor, StreamView stream) {
  launch<DeltaDecodeKernel>(tensor, stream, [](auto&) {});
}

void delta_device_write(const DeltaDeviceTensor& tensor, bool restores, StreamView stream) {
  launch<DeltaWriteKernel>(tensor, stream, [&](auto& kernel) { kernel.restores = restores; });
}

}  // namespace tersor::kernels
