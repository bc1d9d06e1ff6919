// The wires between ranks in threads. The sending thread hands over each message including its
// block, at once or over an emulated link.
#pragma once

#include <tersor/inprocess.h>
#include <tersor/network.h>

#include <memory>
#include <vector>

namespace tersor::inproc {

/// Makes one wire per rank. Throws InvalidArgumentError.
std::vector<std::unique_ptr<Wire>> make_wires(int ranks, const Link& link);

}  // namespace tersor::inproc
