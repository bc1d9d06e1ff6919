// The kernels of codecs that write and read frames unit by unit: headers, checksums and state words
// around the arithmetic of a unit. A codec brings a Coder for encode and a Reader for decode.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/frames.cuh"
#include "kernels/device/seal.cuh"
#include "kernels/device/tiles.cuh"

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The policy of kernels in runs. See kernels/device/units.cuh.
template <unsigned kResidentBlocks>
struct RunsPolicy {
  static constexpr unsigned kThreads = 256;
  static constexpr unsigned kResident = kResidentBlocks;
  static constexpr unsigned kRounds = 1;
  static constexpr unsigned kQuads = 2;
};

/// A policy holds the tuning of a kernel for the compiled architecture: threads per block, minimum
/// resident blocks, and the rounds of a block in ranges (kernels/device/tiles.cuh).
template <class Policy>
concept KernelPolicy = requires {
  { Policy::kThreads + Policy::kResident + Policy::kRounds } -> std::convertible_to<unsigned>;
};

/// The order and the policy of a codec's kernel.
template <class Part>
concept FramePart = requires {
  { Part::Order::kRanges } -> std::convertible_to<bool>;
  requires KernelPolicy<typename Part::Policy>;
};

/// The part of an encoding or reducing kernel that belongs to a codec:
///   Order, Policy      Policy::kQuads is passed to WrittenSum
///   Shared             shared memory of the pass, or empty
///   begin(...)         returns a Pass, the state of one thread. See EncodeFrame, ReduceFrames.
///   sum_written(sum, segment, first, end)    adds written bytes of a segment's values to the
///                                            frame's sum, unless the pass adds them
template <class Coder>
concept FrameCoder = FramePart<Coder> && requires {
  typename Coder::Shared;
  { Coder::Policy::kQuads } -> std::convertible_to<unsigned>;
};

/// Writes a frame, or a part of a frame. The coder's pass has these members:
///   encode(segment, first, sum)    encodes the unit at value `first` of a segment
///   flush(sum)                     ends the pass
template <FrameCoder Coder, unsigned kCapacity>
struct EncodeFrame : UnitKernel {
  static constexpr unsigned kThreads = Coder::Policy::kThreads;
  static constexpr unsigned kRounds = Coder::Policy::kRounds;
  static constexpr unsigned kResident = Coder::Policy::kResident;
  using Order = typename Coder::Order;
  struct Shared {
    ThreadSums<kThreads> written;
    typename Coder::Shared coder;
  };

  SegmentTable<EncodeEntry, kCapacity> table;
  Coder coder;
  CallWords words;
  NextWords next;
  FrameSeal seal;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    seal.write(block);
    auto pass = coder.begin(block, words, shared.coder);
    const WrittenSum<Block, Coder::Policy::kQuads> sum(block, seal, shared.written);
    const auto written = [&](const EncodeEntry& segment, std::size_t first, std::size_t end) {
      Coder::sum_written(sum, segment, first, end);
    };
    Order::visit(
        block, table, DoNothing{},
        [&](const EncodeEntry& segment, std::size_t first) { pass.encode(segment, first, sum); },
        written);
    pass.flush(sum);
    if (sum.is_enabled()) Order::finish(block, table, written);
    sum.flush();
    next.write(block);
    seal.close(block);
  }
};

/// Writes the sum of a list of frames as a frame. The coder's pass has these members:
///   reduce(segment, first, list, factor, valid)    encodes the sum of a unit of all frames, or
///                                                  poisons the unit if `valid` is false
///   flush()                                        ends the pass
template <FrameCoder Coder, unsigned kMaxSegments, unsigned kMaxFrames>
struct ReduceFrames : UnitKernel {
  static constexpr unsigned kThreads = Coder::Policy::kThreads;
  static constexpr unsigned kResident = Coder::Policy::kResident;
  using Order = typename Coder::Order;
  struct Shared {
    ThreadSums<kThreads> written;
    ThreadSums<kThreads> read;
    typename Coder::Shared coder;
  };

  SegmentTable<ReduceEntry, kMaxSegments> table;
  FrameList<kMaxFrames> list;
  Coder coder;
  CallWords words;
  NextWords next;
  FrameSeal seal;
  float factor;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    seal.write(block);
    const bool valid = list.check(block);
    auto pass = coder.begin(block, words, shared.coder);
    const ReadSums sums(block, list, valid, shared.read);
    const WrittenSum<Block, Coder::Policy::kQuads> written(block, seal, shared.written);
    Order::visit(
        block, table,
        [&](std::uint32_t round, unsigned iteration) { sums.add_round(round, iteration); },
        [&](const ReduceEntry& segment, std::size_t first) {
          pass.reduce(segment, first, list, factor, valid);
        },
        [&](const ReduceEntry& segment, std::size_t first, std::size_t end) {
          Coder::sum_written(written, segment, first, end);
        });
    pass.flush();
    next.write(block);
    written.flush();
    close_reduced<typename Coder::Residual>(block, table, sums, list, seal);
  }
};

/// The part of a decoding kernel that belongs to a codec:
///   Order, Policy
///   Value              the type of the decoded values
///   begin(block, list, factor, valid)        returns a Pass, the state of one thread:
///     decode(segment, first, sums)           decodes the unit at value `first` of a segment, or
///                                            writes NaNs if `valid` is false
///     flush(sums)                            ends the pass
///   kSumsCodes          true if decode adds the codes of a single frame to `sums`. Then
///   sum_read(sums, segment, first, end)      adds the rest.
template <class Reader>
concept FrameReader = FramePart<Reader> && requires {
  typename Reader::Value;
  { Reader::kSumsCodes } -> std::convertible_to<bool>;
};

/// Decodes a list of frames, or a part of the list's segments.
template <FrameReader Reader, unsigned kMaxSegments, unsigned kMaxFrames>
struct DecodeFrames : UnitKernel {
  static constexpr unsigned kThreads = Reader::Policy::kThreads;
  static constexpr unsigned kRounds = Reader::Policy::kRounds;
  static constexpr unsigned kResident = Reader::Policy::kResident;
  using Order = typename Reader::Order;
  struct Shared {
    ThreadSums<kThreads> read;
  };

  SegmentTable<DecodeEntry, kMaxSegments> table;
  FrameList<kMaxFrames> list;
  float factor;
  Reader reader;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    const bool valid = list.check(block);
    const ReadSums sums(block, list, valid, shared.read);
    const bool sums_codes = Reader::kSumsCodes && sums.is_single();
    auto pass = reader.begin(block, list, factor, valid);
    Order::visit(
        block, table,
        [&](std::uint32_t round, unsigned iteration) {
          if (!sums_codes) sums.add_round(round, iteration);
        },
        [&](const DecodeEntry& segment, std::size_t first) { pass.decode(segment, first, sums); },
        DoNothing{});
    pass.flush(sums);
    if constexpr (Reader::kSumsCodes) {
      if (sums_codes)
        Order::finish(block, table,
                      [&](const DecodeEntry& segment, std::size_t first, std::size_t end) {
                        Reader::sum_read(sums, segment, first, end);
                      });
    }
    close_decoded<typename Reader::Value>(block, table, sums, list);
  }
};

}  // namespace tersor::kernels
