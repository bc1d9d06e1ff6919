#include <tersor/buffer.h>
#include <tersor/server.h>

#include "comm/server/layout.h"

#include <algorithm>
#include <vector>

namespace tersor {

struct WorkerFrames::State {
  ServerLayout layout;
  Checksum checksum = Checksum::kOn;
  std::uint64_t key = 0;  // of random numbers
  Buffer workspace;
  std::vector<std::vector<float>> residuals;

  template <typename Span>
  std::vector<Span> parts(std::span<const Span> whole) const {
    std::vector<Span> parts;
    for (const Segment& part : layout.segments)
      parts.push_back(whole[part.parameter].subspan(part.first_index, part.count));
    return parts;
  }
};

WorkerFrames::WorkerFrames(std::span<const std::size_t> counts, const ServerOptions& options,
                           int worker, int server, int servers)
    : state_(new State{.layout = server_layout(counts, options, server, servers),
                       .checksum = options.checksum}) {
  const ServerLayout& layout = state_->layout;
  state_->key = Signature().add(layout.signature).add(worker).value();
  state_->workspace =
      Buffer(std::max(layout.push_plan.workspace_bytes, layout.pull_plan.workspace_bytes));
  if (layout.push->has_feedback())
    for (const Segment& part : layout.segments) state_->residuals.emplace_back(part.count);
}
WorkerFrames::~WorkerFrames() = default;
WorkerFrames::WorkerFrames(WorkerFrames&&) noexcept = default;

std::uint64_t WorkerFrames::signature() const { return state_->layout.signature; }
std::size_t WorkerFrames::push_capacity() const { return state_->layout.push_plan.frame_bytes; }
std::size_t WorkerFrames::pull_capacity() const { return state_->layout.pull_plan.frame_bytes; }

std::size_t WorkerFrames::encode(std::span<const ConstValueSpan> gradients, std::uint32_t clock,
                                 ByteSpan frame) {
  State& state = *state_;
  const auto parts = state.parts(gradients);
  std::vector<SegmentState> residuals;
  for (std::vector<float>& one : state.residuals) residuals.push_back({one, one});
  state.layout.push->encode({.segments = state.layout.segments,
                             .gradients = parts,
                             .states = residuals,
                             .random = {.key = state.key, .step = clock},
                             .identity = state.layout.identity(state.checksum),
                             .execution = {.workspace = state.workspace.span()}},
                            frame);
  return frame_bytes(frame);
}

void WorkerFrames::decode(ConstByteSpan frame, std::span<const ValueSpan> weights) {
  const State& state = *state_;
  const auto parts = state.parts(weights);
  state.layout.pull->decode({.segments = state.layout.segments,
                             .frames = {&frame, 1},
                             .outputs = parts,
                             .identity = state.layout.identity(state.checksum),
                             .execution = {.workspace = state.workspace.span()}});
}

}  // namespace tersor
