// Launches lowrank's kernels on a device, for up to kLowrankSegments segments at once. Round 0
// takes two launches, and one launch follows between the rounds. Round 1 takes two launches, three
// with feedback. Decoding takes two launches.

#include "kernels/device/device_call.cuh"
#include "kernels/lowrank/basis_body.cuh"
#include "kernels/lowrank/decode_body.cuh"
#include "kernels/lowrank/device.h"
#include "kernels/lowrank/encode_body.cuh"
#include "kernels/lowrank/offsets.h"

namespace tersor::kernels {
namespace {

/// The sizes summed by for_each_table.
struct LowrankSizes {
  LowrankOffset bytes;
  std::size_t units;
};

LowrankMatrix matrix_of(const Segment& segment, std::size_t rank,
                        const LowrankOffset& offset = {}) {
  const LowrankLayout layout{segment.rows, segment.columns, rank};
  return {.rows = segment.rows,
          .columns = segment.columns,
          .rank = static_cast<std::uint32_t>(layout.rank()),
          .basis = static_cast<std::uint32_t>(offset.basis / kLowrankChains),
          .workspace = static_cast<std::uint32_t>(offset.workspace / kLowrankChains)};
}

/// Queues the launches of one kernel. Sets the kernel's members that follow from the call. The
/// callback entry_of(i, matrix, position) returns the table entries.
template <class Kernel, class Call, class EntryOf>
void launch_all(Queue& queue, Kernel& kernel, const Call& call, std::size_t rank,
                const EntryOf& entry_of) {
  if constexpr (requires { kernel.round_state; })
    kernel.round_state = reinterpret_cast<float*>(call.execution.round_state.data());
  if constexpr (requires { kernel.workspace; })
    kernel.workspace = reinterpret_cast<float*>(call.execution.workspace.data());
  if constexpr (requires { kernel.words; }) kernel.words = words_of_call(call);
  for_each_table(
      kernel.table, call.segments,
      [&](const Segment& segment) -> LowrankSizes {
        return {LowrankOffset::of({segment.rows, segment.columns, rank}),
                Kernel::units(matrix_of(segment, rank))};
      },
      [&](std::size_t i, const LowrankOffset& offset) {
        return entry_of(i, matrix_of(call.segments[i], rank, offset), offset);
      },
      [&](LaunchPosition position) {
        if constexpr (requires { kernel.next; })
          kernel.next = position.is_last ? next_words_of_call(call) : NextWords{};
        if constexpr (requires { Kernel::kTasks; })
          queue.launch_tasks(kernel, kernel.table.units, Kernel::kTasks);
        else
          launch_units(queue, kernel);
      });
}

template <std::size_t LowrankOffset::*kRaw>
auto encode_entry_of(const EncodeCall& call) {
  return [&call](std::size_t i, const LowrankMatrix& matrix, const LowrankOffset& offset) {
    return LowrankEncodeEntry{entry_of(call, i, offset.*kRaw), matrix};
  };
}

template <std::size_t LowrankOffset::*kRaw, class Call>
auto column_entry_of(const Call& call) {
  return [&call](std::size_t i, const LowrankMatrix& matrix, const LowrankOffset& offset) {
    const SegmentMemory memory = call.memories.empty() ? SegmentMemory{} : call.memories[i];
    return LowrankColumnEntry{.memory_in = reinterpret_cast<const float*>(memory.in.pointer()),
                              .memory_out = reinterpret_cast<float*>(memory.out.pointer()),
                              .matrix = matrix,
                              .offset = offset.*kRaw,
                              .parameter = call.segments[i].parameter,
                              .first_unit = 0};
  };
}

/// Calls visitor(T{}) with the value type of round 1.
template <typename Visitor>
void visit_sent_type(Dtype dtype, const Visitor& visitor) {
  if (dtype == Dtype::kBf16) return visitor(Bf16{});
  visitor(float{});
}

template <typename T>
void launch_send(Queue& queue, const EncodeCall& call, std::size_t rank, float factor,
                 ValueSpan values) {
  LowrankSendKernel<T> kernel;
  kernel.values = reinterpret_cast<T*>(values.pointer());
  kernel.factor = factor;
  prepare_next_words(queue, call);
  launch_all(queue, kernel, call, rank, encode_entry_of<&LowrankOffset::right>(call));
}

}  // namespace

void lowrank_device_project(const EncodeCall& call, std::size_t rank, ValueSpan projected) {
  Queue queue(call.execution.stream);
  LowrankDirectionsKernel directions;
  launch_all(queue, directions, call, rank, column_entry_of<&LowrankOffset::left>(call));
  visit_sent(call, [&]<typename G, typename E>(G, E) {
    LowrankProjectKernel<G, E> kernel;
    kernel.projected = reinterpret_cast<float*>(projected.pointer());
    launch_all(queue, kernel, call, rank, encode_entry_of<&LowrankOffset::left>(call));
  });
}

void lowrank_device_basis(const DecodeCall& call, std::size_t rank, ConstValueSpan projected) {
  Queue queue(call.execution.stream);
  LowrankBasisKernel kernel;
  kernel.projected = reinterpret_cast<const float*>(projected.pointer());
  launch_all(queue, kernel, call, rank, column_entry_of<&LowrankOffset::left>(call));
}

void lowrank_device_coefficients(const EncodeCall& call, std::size_t rank, float factor,
                                 ValueSpan values) {
  Queue queue(call.execution.stream);
  visit_sent(call, [&]<typename G, typename E>(G, E) {
    LowrankPartialKernel<G, E> partial;
    launch_all(queue, partial, call, rank, encode_entry_of<&LowrankOffset::right>(call));
    visit_sent_type(values.dtype(),
                    [&]<typename T>(T) { launch_send<T>(queue, call, rank, factor, values); });
    if constexpr (!std::is_same_v<E, NoResidual>) {
      LowrankResidualKernel<G, E> residual;
      launch_all(queue, residual, call, rank, encode_entry_of<&LowrankOffset::right>(call));
    }
  });
}

void lowrank_device_decode(const DecodeCall& call, std::size_t rank, ConstValueSpan values) {
  Queue queue(call.execution.stream);
  visit_sent_type(values.dtype(), [&]<typename T>(T) {
    LowrankRememberKernel<T> kernel;
    kernel.values = reinterpret_cast<const T*>(values.pointer());
    launch_all(queue, kernel, call, rank, column_entry_of<&LowrankOffset::right>(call));
  });
  visit_gradient_dtype(dtype_of(call.outputs), [&]<typename T>(T) {
    LowrankDecodeKernel<T> kernel;
    kernel.factor = call.factor;
    kernel.mode = call.mode;
    launch_all(queue, kernel, call, rank,
               [&](std::size_t i, const LowrankMatrix& matrix, const LowrankOffset& offset) {
                 return LowrankDecodeEntry{entry_of(call, i, offset.right), matrix};
               });
  });
}

}  // namespace tersor::kernels
