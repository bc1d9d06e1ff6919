// blocktopk on the CPU: encode, decode and reduce ranges of a segment on one thread. A range begins
// at a block of 4,096 values. kernels/blocktopk/formulas.h defines the arithmetic. The bytes are
// the same on every instruction set. Value pointers need only the alignment of their element type,
// and section pointers the alignment of words.
#pragma once

#include "kernels/host/arguments.h"

#include <tersor/codecs/blocktopk.h>
#include <tersor/dtype.h>
#include <tersor/modes.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::kernels {

/// The sections of a payload from one block on. Scales are stored as f32 bits.
template <typename Word>  // std::uint32_t or const std::uint32_t
struct BlocktopkSections {
  Word* scales;
  Word* high;
  Word* low;
  Word* values;

  /// Returns the sections from `blocks` blocks later on.
  BlocktopkSections from(std::size_t blocks, const BlocktopkBlock& block) const {
    return {scales + blocks * block.scale_words(), high + blocks * block.high_words(),
            low + blocks * block.low_words(), values + blocks * block.value_words()};
  }
};
using BlocktopkPayload = BlocktopkSections<std::uint32_t>;
using BlocktopkView = BlocktopkSections<const std::uint32_t>;

struct BlocktopkEncode {
  EncodeInput sent;
  BlocktopkBlock block;
  BlocktopkPayload output;
};

/// The payloads of a range, at least one. Each payload has passed blocktopk_validate.
struct BlocktopkInput {
  BlocktopkBlock block;
  std::span<const BlocktopkView> payloads;
  std::size_t count;
};

/// Decodes the sum of the payloads, in order, in f32, rounded once to the output's dtype. The sum
/// starts at +0 or at the old output. Each payload adds value · factor, and the product and the sum
/// are rounded separately.
struct BlocktopkDecode {
  BlocktopkInput input;
  DecodeOutput to;
};

/// Encodes the decoded sum of the payloads plus residual_factor · residual.
struct BlocktopkReduce {
  BlocktopkInput input;
  float factor;
  ErrorFeedback feedback;
  BlocktopkPayload output;
};

/// Encodes a range, with or without error feedback. Returns the number of finite values in poisoned
/// blocks.
std::size_t blocktopk_encode(const BlocktopkEncode& arguments);

/// Returns a sentence about the first invalid index of a range's payload, or null if the payload
/// may be decoded.
const char* blocktopk_validate(const BlocktopkView& payload, const BlocktopkBlock& block,
                               std::size_t count);

/// Decodes the sum of payloads.
void blocktopk_decode(const BlocktopkDecode& arguments);

/// Adds payloads and encodes the sum. Returns the number of finite values in poisoned blocks.
std::size_t blocktopk_reduce(const BlocktopkReduce& arguments);

}  // namespace tersor::kernels
