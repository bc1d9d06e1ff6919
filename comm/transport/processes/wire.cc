// Implements wire.h.
#include "comm/transport/processes/wire.h"

#include <tersor/error.h>

#include <string>

namespace tersor::processes {

void check_protocol(const Head& head, int peer) {
  const host::Envelope ours;
  if (head.envelope.magic != ours.magic || head.envelope.version != ours.version)
    refuse_protocol(peer);
}

void refuse_protocol(int peer) {
  throw TransportError("rank " + std::to_string(peer) +
                       " speaks another version of the transport: all ranks need the same format "
                       "version of Tersor");
}

}  // namespace tersor::processes
