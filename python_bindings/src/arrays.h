// Arrays of other libraries as spans, without a copy: anything with DLPack or the buffer protocol
// (NumPy, PyTorch, CuPy; JAX to read from), on the host or on a CUDA device. NumPy's bfloat16 is
// that of ml_dtypes. Every function here needs the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <tersor/error.h>
#include <tersor/span.h>
#include <tersor/stream.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tersor::python {

namespace nb = nanobind;

/// Which arrays are taken: those whose values lie in the order of their indices, or all that fill
/// their memory without gaps (channels-last too), whose values then are in the order of memory.
enum class Layout { kContiguous, kDense };

/// What a call does with an array: works on its values, or looks at its shape, dtype and place.
enum class Use { kValues, kShape };

/// What the importers below are told beside the array.
struct ArrayRequest {
  const char* name = "array";  ///< of the argument, for messages
  Layout layout = Layout::kContiguous;
  Use use = Use::kValues;
  /// Device memory: what the array's library shall order its own work before, a stream as
  /// `to_stream` takes it. None: the stream that `to_stream` takes None for.
  nb::handle stream = nb::none();
};

/// A view of an array, and what keeps its memory alive. To be destroyed with the GIL held.
template <typename Span>
struct Array {
  Span span;
  Memory memory = Memory::kHost;
  int device = 0;  ///< CUDA's number of the device; 0 on the host
  std::vector<std::size_t> shape;
  std::vector<std::size_t> axes;  ///< of more than one value, as they lie: the outermost first
  nb::ndarray<nb::ro> owner;
};

/// A shape as a matrix of its first dimension and the others; of one dimension it has no columns.
struct MatrixShape {
  std::size_t count = 1, rows = 1, columns = 0;
};
MatrixShape matrix_of(std::span<const std::size_t> shape);

/// A number for how axes lie, as CollectiveOptions::order has it: 0 where values lie in the order
/// of their indices.
std::uint32_t order_of(const std::vector<std::size_t>& axes);

/// f32, bf16 or f16 values. Throw InvalidArgument, which says what to do, for other dtypes, for
/// another layout, for devices that are not CUDA's, and where a read-only array is to be written.
Array<ConstValueSpan> read_values(nb::handle array, const ArrayRequest& request = {});
Array<ValueSpan> write_values(nb::handle array, const ArrayRequest& request = {});

/// The bytes of a contiguous array of any dtype, or of a `bytes` object. Throw as above.
Array<ConstByteSpan> read_bytes(nb::handle array, const ArrayRequest& request = {});
Array<ByteSpan> write_bytes(nb::handle array, const ArrayRequest& request = {});

/// Throws InvalidArgument where the array that was given for the argument `name` lies elsewhere.
template <typename First, typename Span>
void check_same_device(const Array<First>& first, const Array<Span>& other, const char* name) {
  if (other.memory == first.memory && other.device == first.device) return;
  const auto text = [](Memory memory, int device) {
    return memory == Memory::kHost ? std::string("the host") : "cuda:" + std::to_string(device);
  };
  throw InvalidArgument(std::string(name) + ": it lies on " + text(other.memory, other.device) +
                        ", the first array on " + text(first.memory, first.device) +
                        "; all arrays of a call lie on one device");
}

/// A stream as Python programs have it: an int (a cudaStream_t), or an object of PyTorch
/// (`cuda_stream`), CuPy (`ptr`) or anything with `__cuda_stream__`. None: the current stream of
/// the library that `array` comes from, CUDA's legacy default stream where it has none. Host memory
/// needs no stream. Throws InvalidArgument for anything else.
StreamView to_stream(nb::handle stream, nb::handle array, Memory memory);

/// Whether the library that the array comes from has a current stream which `to_stream` knows.
bool has_current_stream(nb::handle array);

}  // namespace tersor::python
