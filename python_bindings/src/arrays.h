// Other libraries' arrays as spans, without a copy: all arrays with DLPack or the buffer protocol
// (NumPy, PyTorch, CuPy; JAX only as input), on the host or on a CUDA device. NumPy's bfloat16 is
// the type of ml_dtypes. Every function here needs the GIL.
#pragma once

#include "kernels/device/device.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <tersor/buffer.h>
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

/// The accepted memory layouts. kContiguous: values in the order of their indices. kDense: any
/// layout without gaps (e.g. channels-last); the values are then in memory order.
enum class Layout { kContiguous, kDense };

/// The use of an array in a call: the values, or only shape, dtype and device.
enum class Use { kValues, kShape };

/// Arguments of the importers below.
struct ArrayRequest {
  const char* name = "array";  ///< name of the argument in messages
  Layout layout = Layout::kContiguous;
  Use use = Use::kValues;
  bool on_host = false;  ///< True if arrays on devices are refused.
  /// Device memory: the array's library orders its own work before this stream, given as for
  /// `to_stream`. None: the default of `to_stream`.
  nb::handle stream = nb::none();
};

/// A view of an array and the owner of its memory. Destroy the view with the GIL held.
template <typename Span>
struct Array {
  Span span;
  Memory memory = Memory::kHost;
  int device = -1;  ///< CUDA's device number; -1 on the host
  std::vector<std::size_t> shape;
  /// Axes with more than one value in memory order, the outermost first.
  std::vector<std::size_t> axes;
  nb::ndarray<nb::ro> owner;
};

/// A shape as a matrix: the first dimension by the product of the others. A 1-D shape has no
/// columns.
struct MatrixShape {
  std::size_t count = 1, rows = 1, columns = 0;
};
MatrixShape matrix_of(std::span<const std::size_t> shape);

/// Returns a number for the memory order of axes (CollectiveOptions::order). 0 is the order of the
/// indices.
std::uint32_t order_of(const std::vector<std::size_t>& axes, const std::vector<std::size_t>& shape);

/// Imports f32, bf16 or f16 values. Throws InvalidArgumentError with a remedy for other dtypes, for
/// another layout, for devices other than CUDA, and for a read-only array as output.
Array<ConstValueSpan> read_values(nb::handle array, const ArrayRequest& request = {});
Array<ValueSpan> write_values(nb::handle array, const ArrayRequest& request = {});

/// Imports the bytes of a contiguous array of any dtype, or of a `bytes` object. Throws as above.
Array<ConstByteSpan> read_bytes(nb::handle array, const ArrayRequest& request = {});
Array<ByteSpan> write_bytes(nb::handle array, const ArrayRequest& request = {});

/// The arrays of a call, and a list of the spans for the library.
template <typename Span>
struct ArrayList {
  std::vector<Array<Span>> arrays;
  std::vector<Span> spans;
};

/// A Python sequence of arrays.
using Arrays = nb::typed<nb::sequence, nb::object>;

/// `import` is a function declared above.
template <typename Span>
ArrayList<Span> import_all(Arrays sequence,
                           Array<Span> (*import)(nb::handle array, const ArrayRequest& request),
                           const ArrayRequest& request) {
  ArrayList<Span> list;
  for (const nb::handle array : sequence) {
    list.arrays.push_back(import(array, request));
    list.spans.push_back(list.arrays.back().span);
  }
  return list;
}

/// Replaces unaligned host frames (e.g. a part of a message) by aligned copies.
/// Copying costs little compared with decoding. The caller keeps the returned copies.
std::vector<Buffer> align_frames(std::span<ConstByteSpan> frames, Memory memory);

/// Throws InvalidArgumentError unless the array is float32 in host memory.
template <typename Span>
auto host_floats(const Array<Span>& array, const char* name) {
  if (array.memory != Memory::kHost || array.span.dtype() != Dtype::kF32)
    throw InvalidArgumentError(std::string(name) + ": pass float32 values in host memory");
  return array.span.template as<float>();
}

/// Throws InvalidArgumentError if the array of the argument `name` is on another device.
template <typename First, typename Span>
void check_same_device(const Array<First>& first, const Array<Span>& other, const char* name) {
  if (other.memory == first.memory && other.device == first.device) return;
  const auto text = [](Memory memory, int device) {
    return memory == Memory::kHost ? std::string("the host") : "cuda:" + std::to_string(device);
  };
  throw InvalidArgumentError(std::string(name) + ": the array is on " +
                             text(other.memory, other.device) + ", the first array on " +
                             text(first.memory, first.device) +
                             "; pass all arrays of a call on one device");
}

/// Converts a Python stream: an int (a cudaStream_t), or an object of PyTorch (`cuda_stream`), CuPy
/// (`ptr`) or any library with `__cuda_stream__`. None means the current stream of the array's
/// library or, without a current stream, CUDA's legacy default stream. Host memory needs no stream.
/// Throws InvalidArgumentError for any other object.
StreamView to_stream(nb::handle stream, nb::handle array, Memory memory);

/// Returns a Python function that returns the current stream of the array's library and device, or
/// None without a current stream.
nb::object stream_source(nb::handle array);

/// Returns the stream of a call for all its arrays, as in `to_stream`. None becomes the current
/// stream of the first array, if the array is on a device. `name`: the array's name in messages.
nb::object stream_of_call(nb::handle stream, nb::handle first, const char* name);

}  // namespace tersor::python
