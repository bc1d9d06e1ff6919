// Makes a gossip's codec and step size from the options.
#pragma once

#include <tersor/codec.h>
#include <tersor/gossip.h>

#include <memory>
#include <string>

namespace tersor {

/// Throws InvalidArgument for a codec with feedback.
std::shared_ptr<const Codec> gossip_codec(const std::string& spec);

/// By default, the kept energy of the codec decides.
double gossip_step_size(const GossipOptions& options, const Codec& codec);

}  // namespace tersor
