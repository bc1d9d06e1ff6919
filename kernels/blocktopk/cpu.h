// blocktopk on the CPU: ranges of a segment that begin at a block of 4,096 values, on one thread.
// The arithmetic stands in kernels/blocktopk/formulas.h. Same bytes on every instruction set. All
// pointers of values need only their element's alignment, those of sections that of words.
#pragma once

#include "kernels/host/arguments.h"

#include <tersor/codecs/blocktopk.h>
#include <tersor/dtype.h>
#include <tersor/modes.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::kernels {

/// The sections of a payload from one block on; scales are bits of f32.
template <typename Word>  // std::uint32_t, or const
struct BlocktopkSections {
  Word* scales;
  Word* high;
  Word* low;
  Word* values;

  /// From the block `blocks` behind it on.
  BlocktopkSections from(std::size_t blocks, const BlocktopkBlock& block) const {
    return {scales + blocks * block.scale_words(), high + blocks * block.high_words(),
            low + blocks * block.low_words(), values + blocks * block.value_words()};
  }
};
using BlocktopkPayload = BlocktopkSections<std::uint32_t>;
using BlocktopkView = BlocktopkSections<const std::uint32_t>;

struct BlocktopkEncode {
  Sent sent;
  BlocktopkBlock block;
  BlocktopkPayload output;
};

/// The payloads of a range: at least one, each validated.
struct BlocktopkInput {
  BlocktopkBlock block;
  std::span<const BlocktopkView> payloads;
  std::size_t count;
};

/// The sum of the payloads, in their order, in f32 and rounded once into the output: +0 or the old
/// value; for each payload sum = sum + value · factor, both rounded.
struct BlocktopkDecode {
  BlocktopkInput input;
  Decoded to;
};

/// The sum of the payloads as decoding makes it, plus residual_factor · residual, coded again.
struct BlocktopkReduce {
  BlocktopkInput input;
  float factor;
  ErrorFeedback feedback;
  BlocktopkPayload output;
};

/// Codes a range, with or without error feedback. Returns how many finite values lie in blocks that
/// are poisoned.
std::size_t blocktopk_encode(const BlocktopkEncode& arguments);

/// What is wrong with the places of a range's payload, as a sentence; null where it may be decoded.
const char* blocktopk_validate(const BlocktopkView& payload, const BlocktopkBlock& block,
                               std::size_t count);

/// Decodes the sum of payloads.
void blocktopk_decode(const BlocktopkDecode& arguments);

/// Adds payloads and codes their sum. Returns what blocktopk_encode does.
std::size_t blocktopk_reduce(const BlocktopkReduce& arguments);

}  // namespace tersor::kernels
