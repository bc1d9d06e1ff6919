// See scratch.h.
#include "python_bindings/src/scratch.h"

#include <utility>

namespace tersor::python {
namespace {

ByteSpan room_in(Buffer& buffer, std::size_t bytes, Memory memory) {
  if (buffer.bytes() < bytes) buffer = Buffer(bytes, memory);
  return buffer.span();
}

}  // namespace

Execution Scratch::execution(const PlanSizes& sizes, const Place& place) {
  return {.threads = &threads_,
          .stream = place.stream,
          .workspace = room_in(workspace_, sizes.workspace_bytes, place.memory),
          .kept = room_in(kept_, sizes.kept_bytes, place.memory),
          .memory = place.memory};
}

std::unique_ptr<Scratch> ScratchPool::take(const Place& place) {
  const std::lock_guard lock(mutex_);
  const auto found = idle_.find({place.memory, place.device, place.stream.handle});
  if (found == idle_.end()) return std::make_unique<Scratch>(threads_);
  return std::move(idle_.extract(found).mapped());
}

void ScratchPool::give_back(const Place& place, std::unique_ptr<Scratch> scratch) {
  const std::lock_guard lock(mutex_);
  idle_.emplace(Key{place.memory, place.device, place.stream.handle}, std::move(scratch));
}

}  // namespace tersor::python
