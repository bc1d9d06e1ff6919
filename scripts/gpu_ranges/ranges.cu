// Times the kernels of int8, int4 and bf16 with several numbers of rounds per block, without and
// with checksums, next to a copy of the same number of bytes. scripts/gpu-ranges builds and runs
// this file.
#include "bench/common/gpu/gpu.h"
#include "bench/common/timing.h"
#include "kernels/cast/body.cuh"
#include "kernels/device/device_call.cuh"
#include "kernels/device/device_memory.h"
#include "kernels/quantize/body.cuh"
#include "kernels/quantize/int4.h"
#include "kernels/quantize/int8.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <type_traits>
#include <vector>

namespace {

using namespace tersor;
using namespace tersor::kernels;

Buffer filled(std::size_t bytes, int fill) {
  Buffer buffer(bytes, Memory::kDevice);
  check_cuda(cudaMemset(buffer.pointer(), fill, bytes), "filling");
  return buffer;
}

class Bench {
 public:
  Bench(std::size_t count, std::size_t launches, int samples)
      : count_(count), launches_(launches), samples_(samples) {}

  template <class Format, typename G, typename E>
  void encode(const char* name) {
    using Kernel = QuantizeEncodeKernel<Format, G, E, NoiseKind::kNone, kShortListSegments>;
    constexpr std::size_t kResidual = std::is_same_v<E, NoResidual> ? 0 : sizeof(E);
    Kernel kernel;
    const Buffer residual = filled(kResidual * count_ + 16, 0);
    kernel.table.add({.gradient = values_.pointer(),
                      .residual_in = residual.pointer(),
                      .residual_out = residual.pointer(),
                      .count = count_},
                     count_ / kTileValues);
    kernel.coder.payload = frame_.pointer() + sizeof(FrameHeader);
    kernel.coder.key = 0;
    const std::size_t bytes = count_ * (sizeof(G) + 2 * kResidual) + frame_bytes<Format>();
    for (const bool sums : {false, true}) {
      FrameHeader header{};
      header.payload_bytes = frame_bytes<Format>();
      header.flags = sums ? kFrameHasChecksum : 0;
      kernel.seal = seal_of({frame_.pointer(), header}, {.is_first = true, .is_last = true});
      run(name, kernel, bytes, sums, sums ? FrameSeal::sums_of(frame_.pointer()) : nullptr,
          FrameSeal::kSumsBytes);
    }
  }

  template <class Format, typename T>
  void decode(const char* name) {
    using Kernel =
        QuantizeDecodeKernel<Format, T, DecodeMode::kAssign, kShortListSegments, kShortListFrames>;
    Kernel kernel;
    kernel.factor = 1;
    kernel.table.add({.output = values_.pointer(),
                      .count = count_,
                      .offset = 0,
                      .parameter = 0,
                      .first_unit = 0},
                     count_ / kTileValues);
    kernel.list.frames = 1;
    kernel.list.frame[0] = frame_.pointer();
    kernel.list.expected.payload_bytes = frame_bytes<Format>();
    const Buffer sums = filled(device_frames_bytes(1), 0);
    const std::size_t bytes = count_ * sizeof(T) + frame_bytes<Format>();
    check_cuda(cudaMemset(frame_.pointer(), 0, sizeof(FrameHeader)), "clearing the header");
    for (const bool summed : {false, true}) {
      FrameHeader header{};
      header.payload_bytes = frame_bytes<Format>();
      check_cuda(cudaMemcpy(frame_.pointer(), &header, sizeof header, cudaMemcpyHostToDevice),
                 "writing the header");
      kernel.list.expected = header;
      kernel.list.sums = summed ? reinterpret_cast<ChecksumParts*>(sums.pointer()) : nullptr;
      // The header claims no checksum, so the last block would fill the output with NaN.
      // A ticket that does not start at zero has no last block.
      run(name, kernel, bytes, summed, nullptr, 0, [&] {
        if (summed)
          check_cuda(cudaMemsetAsync(kernel.list.ticket(), 0x40, sizeof(std::uint32_t)),
                     "clearing");
      });
    }
  }

  /// Sums eight frames with residuals of type E. `bytes` is the size of a payload.
  template <class Kernel, typename E>
  void reduce(const char* name, std::size_t bytes) {
    constexpr std::size_t kFrames = 8;
    constexpr std::size_t kResidual = std::is_same_v<E, NoResidual> ? 0 : sizeof(E);
    Kernel kernel;
    const Buffer residual = filled(kResidual * count_ + 16, 0);
    const Buffer frames = filled(kFrames * (sizeof(FrameHeader) + bytes), 0x11);
    const Buffer sums = filled(device_frames_bytes(kFrames), 0);
    kernel.factor = 1;
    kernel.table.add(
        {.residual_in = residual.pointer(), .residual_out = residual.pointer(), .count = count_},
        count_ / Kernel::Order::kValues);
    if constexpr (requires { kernel.coder.payload; })
      kernel.coder.payload = frame_.pointer() + sizeof(FrameHeader);
    else
      kernel.coder.target = {frame_.pointer() + sizeof(FrameHeader), Padding::kSection, nullptr};
    FrameHeader header{};
    header.payload_bytes = bytes;
    kernel.list.frames = kFrames;
    for (std::size_t i = 0; i < kFrames; ++i) {
      std::byte* frame = frames.pointer() + i * (sizeof(FrameHeader) + bytes);
      kernel.list.frame[i] = frame;
      check_cuda(cudaMemcpy(frame, &header, sizeof header, cudaMemcpyHostToDevice), "writing");
    }
    kernel.list.expected = header;
    for (const bool summed : {false, true}) {
      kernel.list.sums = summed ? reinterpret_cast<ChecksumParts*>(sums.pointer()) : nullptr;
      header.flags = summed ? kFrameHasChecksum : 0;
      kernel.seal = seal_of({frame_.pointer(), header}, {.is_first = true, .is_last = true});
      // No block is the last one, which would compare the sums.
      run(name, kernel, (kFrames + 1) * bytes + 2 * kResidual * count_, summed, nullptr, 0, [&] {
        if (summed)
          check_cuda(cudaMemsetAsync(FrameSeal::sums_of(frame_.pointer()), 0x40, kSums),
                     "clearing");
      });
    }
  }

 private:
  static constexpr std::size_t kSums = FrameSeal::kSumsBytes;

  template <class Format>
  std::size_t frame_bytes() const {
    return typename Format::Layout{count_}.bytes();
  }

  /// Returns the median time of a launch in microseconds.
  double time_of(const std::function<void()>& launch) {
    std::vector<double> times;
    for (int sample = 0; sample < samples_; ++sample)
      times.push_back(clock_.seconds_per_call(launch, launches_) * 1e6);
    return bench::median(times);
  }

  /// Prints a line per number of rounds.
  template <class Kernel>
  void run(
      const char* name, Kernel& kernel, std::size_t bytes, bool sums, void* clear,
      std::size_t clear_bytes, const std::function<void()>& before = [] {}) {
    const Buffer from = filled(bytes / 2, 1), to = filled(bytes / 2, 2);
    const double copy =
        time_of([&] { copy_bytes(to.pointer(), from.pointer(), bytes / 2, StreamView{}); });
    Queue queue(StreamView{});
    constexpr unsigned kWarps = Kernel::kThreads / kWarpThreads;
    const std::size_t rounds = ceil_div(std::size_t{kernel.table.units}, kWarps);
    const std::size_t resident = queue.resident<Kernel>();
    for (std::size_t run : {std::size_t{1}, std::size_t{2}, std::size_t{4}, std::size_t{8},
                            std::size_t{16}, ceil_div(rounds, resident)}) {
      kernel.table.run = static_cast<std::uint32_t>(run);
      if constexpr (requires { kernel.list; }) kernel.list.distribute(rounds);
      const double time = time_of([&] {
        if (clear != nullptr) check_cuda(cudaMemsetAsync(clear, 0, clear_bytes), "clearing");
        before();
        queue.launch(kernel, static_cast<unsigned>(ceil_div(rounds, run)));
      });
      std::printf("%-28s %-8s %4zu rounds per block  %8.2f us  %7.1f GB/s  %6.3f of a copy\n", name,
                  sums ? "checksum" : "", run, time, static_cast<double>(bytes) / time / 1e3,
                  copy / time);
    }
  }

  std::size_t count_, launches_;
  int samples_;
  bench::DeviceClock clock_{StreamView{}};
  Buffer values_ = filled(count_ * sizeof(float), 0x3e);
  Buffer frame_ = filled(2 * count_ + sizeof(FrameHeader), 0x11);  // up to 16 bits per value
};

template <class Format, typename E>
void reduce(Bench& bench, const char* name, std::size_t count) {
  using Kernel =
      QuantizeReduceKernel<Format, E, NoiseKind::kNone, kShortListSegments, kShortListFrames>;
  bench.reduce<Kernel, E>(name, typename Format::Layout{count}.bytes());
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t tiles = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1 << 16;
  const bool once = tiles < 1024;
  Bench bench(tiles * kTileValues, once ? 1 : 8, once ? 1 : 9);
  bench.encode<Int8Format, float, NoResidual>("int8 encode f32");
  bench.encode<Int4Format, float, NoResidual>("int4 encode f32");
  bench.encode<Int8Format, Bf16, NoResidual>("int8 encode bf16");
  bench.encode<Int4Format, Bf16, NoResidual>("int4 encode bf16");
  bench.encode<Int8Format, float, float>("int8 encode f32 + feedback");
  bench.decode<Int8Format, float>("int8 decode f32");
  bench.decode<Int4Format, float>("int4 decode f32");
  bench.decode<Int4Format, Bf16>("int4 decode bf16");
  const std::size_t count = tiles * kTileValues;
  reduce<Int8Format, NoResidual>(bench, "int8 reduce of 8", count);
  reduce<Int8Format, float>(bench, "int8 reduce of 8 + feedback", count);
  reduce<Int4Format, float>(bench, "int4 reduce of 8 + feedback", count);
  using Bf16Kernel =
      CastReduceKernel<Bf16, NoResidual, NoiseKind::kNone, kShortListSegments, kShortListFrames>;
  bench.reduce<Bf16Kernel, NoResidual>("bf16 reduce of 8", 2 * count);
}
