// Implements postman.h: copies what is sent, outside of the world's lock.
#include "comm/transport/inproc/postman.h"

#include <cstring>

namespace tersor::inproc {

void InProcessPostman::post(host::Batch& batch) {
  pack(batch);
  world_->post(box_, batch, payloads_);
}

// What goes to several peers is copied once, and what lies in a block not at all.
void InProcessPostman::pack(const host::Batch& batch) {
  payloads_.clear();
  const host::Outgoing* before = nullptr;
  for (const host::Outgoing& outgoing : batch.outgoing) {
    const ConstByteSpan bytes = outgoing.payload;
    if (outgoing.block) {
      payloads_.push_back(outgoing.block);
    } else if (before != nullptr && before->payload.data() == bytes.data() &&
               before->payload.size() == bytes.size()) {
      payloads_.push_back(payloads_.back());
    } else {
      payloads_.push_back(world_->pools().host().take(bytes.size()));
      if (!bytes.empty())
        std::memcpy(payloads_.back().writable().data(), bytes.data(), bytes.size());
    }
    before = &outgoing;
  }
}

void InProcessPostman::progress() {
  seen_ = box_.bell.rings();
  world_->progress(box_);
}

std::shared_ptr<host::Postman> InProcessPostman::join(std::span<const int> members) {
  return std::make_shared<InProcessPostman>(world_, world_->join(box_, members));
}

}  // namespace tersor::inproc
