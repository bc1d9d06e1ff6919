// lowrank on the CPU. Memory traffic in bytes per value, for f32: P reads 4, W reads 4, decode
// writes
// 4. Error feedback adds 4 read to P and to W, and the residual reads 8 and writes 4.

#include "kernels/lowrank/cpu.h"

#include "kernels/host/targets.h"
#include "kernels/scalar/square_root.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/lowrank/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/host/feedback-inl.h"
#include "kernels/lowrank/chains-inl.h"
#include "kernels/scalar/float_mode.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// A range of p in blocks of 64 values. The last block is padded with zeros.
template <typename G, typename E>
class SentValues {
 public:
  SentValues(const EncodeInput& sent, std::size_t first, std::size_t count)
      : factors_(sent.feedback),
        gradient_(static_cast<const G*>(sent.gradient) + first, count),
        residual_(residual_at(sent.feedback.residual_in, first), count) {}

  HWY_INLINE void load(std::size_t first, float* p) {
    const auto* gradient = gradient_.tile(first);
    const auto residual = residual_.tile(first);
    for (std::size_t k = 0; k < kLowrankChains; k += kLanes)
      store_values(with_feedback(gradient + k, residual + k, factors_), p + k);
  }

 private:
  static const void* residual_at(const void* residual, std::size_t first) {
    if constexpr (std::is_same_v<E, NoValues>)
      return nullptr;
    else
      return static_cast<const E*>(residual) + first;
  }

  const Factors factors_;
  Input<G, kLowrankChains> gradient_;
  Input<E, kLowrankChains> residual_;
};

template <typename G, typename E>
void project_row(const EncodeInput& sent, const LowrankShape& shape, std::size_t row,
                 const float* directions, float (*chains)[kLowrankChains]) {
  constexpr std::size_t kTile = 16 * kLowrankChains;  // values of p, in the first-level cache
  alignas(kCacheLine) float p[kTile];
  const std::size_t stride = lowrank_stride(shape.columns);
  SentValues<G, E> values(sent, row * shape.columns, shape.columns);
  for (std::size_t first = 0; first < stride; first += kTile) {
    const std::size_t count = std::min(kTile, stride - first);
    for (std::size_t i = 0; i < count; i += kLowrankChains) values.load(first + i, p + i);
    for (std::size_t j = 0; j < shape.rank; ++j) {
      Chains sums = Chains::of(chains[j]);
      const float* direction = directions + j * stride + first;
      for (std::size_t i = 0; i < count; i += kLowrankChains)
        sums.add(Chains::of(p + i), direction + i);
      sums.store(chains[j]);
    }
  }
}

void lowrank_project_on(const EncodeInput& sent, const LowrankShape& shape, LowrankRange rows,
                        const float* directions, float* projected) {
  const DefaultFloatMode mode;
  alignas(kCacheLine) float chains[kLowrankMaxRank][kLowrankChains];
  visit_sent(sent, [&](auto gradient, auto residual) {
    for (std::size_t row = rows.first; row < rows.first + rows.count; ++row) {
      std::fill_n(chains[0], shape.rank * kLowrankChains, 0.0f);
      project_row<decltype(gradient), decltype(residual)>(sent, shape, row, directions, chains);
      for (std::size_t j = 0; j < shape.rank; ++j)
        projected[j * shape.rows + row] = canonical(Chains::of(chains[j]).sum());
    }
  });
}

HWY_INLINE float product(const float* a, const float* b, std::size_t count) {
  Chains sums = Chains::zero();
  for (std::size_t i = 0; i < count; i += kLowrankChains) sums.add(Chains::of(a + i), b + i);
  return sums.sum();
}

/// column ← column + factor · other
HWY_INLINE void add_column(float* column, float factor, const float* other, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLowrankChains) {
    Chains sums = Chains::of(column + i);
    sums.add(other + i, factor);
    sums.store(column + i);
  }
}

HWY_INLINE void scale_column(float* column, float factor, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLowrankChains) {
    Chains values = Chains::of(column + i);
    values.scale(factor);
    values.store(column + i);
  }
}

inline std::uint32_t largest_bits(const float* values, std::size_t count) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) most = std::max(most, magnitude_bits(values[i]));
  return most;
}

/// Scales a column so that the largest magnitude is in [1, 2), and returns the old magnitude as
/// bits.
std::uint32_t scale_to_unit_magnitude(float* column, std::size_t count) {
  const std::uint32_t most = largest_bits(column, count);
  const PowerOfTwo power = to_unit(float_of(most));
  scale_column(column, power.first, count);
  scale_column(column, power.second, count);
  return most;
}

/// Scales a column to length 1, or to zeros if its length is at most `min_length`.
void normalize(float* column, std::size_t count, float min_length) {
  const std::uint32_t most = scale_to_unit_magnitude(column, count);
  const float length = square_root(product(column, column, count));
  const bool is_significant = length * power_below(most) > min_length;
  scale_column(column, is_significant ? reciprocal(length) : 0.0f, count);
}

/// If any value is not finite, sets all values to NaN and returns false. Finite inputs give finite
/// results.
bool keep_finite(float* basis, std::size_t count) {
  if (largest_bits(basis, count) < kInfinityBits) return true;
  std::fill_n(basis, count, float_of(kNanBits));
  return false;
}

void lowrank_orthonormalize_on(const LowrankShape& shape, float* basis) {
  const DefaultFloatMode mode;
  const std::size_t stride = lowrank_stride(shape.rows);
  if (!keep_finite(basis, shape.rank * stride)) return;
  for (std::size_t j = 0; j < shape.rank; ++j) scale_to_unit_magnitude(basis + j * stride, stride);
  for (const float min_length : {0.0f, kLowrankMinLength})
    for (std::size_t j = 0; j < shape.rank; ++j) {
      float* column = basis + j * stride;
      normalize(column, stride, min_length);
      for (std::size_t later = j + 1; later < shape.rank; ++later) {
        float* other = basis + later * stride;
        add_column(other, -product(column, other, stride), column, stride);
      }
    }
}

/// Stores the first `count` of 64 values.
template <typename T>
HWY_INLINE void store_partial(const Chains& values, T* target, std::size_t count) {
  if (count >= kLowrankChains) return values.store(target);
  T padded[kLowrankChains];
  values.store(padded);
  std::copy_n(padded, count, target);
}

/// Returns the values of a row in 64 columns: products with the row's part of the basis.
HWY_INLINE Chains row_value(const float* basis, std::size_t basis_stride, const float* right,
                            std::size_t right_stride, std::size_t rank) {
  Chains value = Chains::of(right);
  value.scale(*basis);
  for (std::size_t j = 1; j < rank; ++j)
    value.add(right + j * right_stride, basis[j * basis_stride]);
  return value;
}

/// Computes W of up to kLowrankStrip columns, and the remainder of p.
template <typename G, typename E>
class Strip {
 public:
  Strip(const LowrankCoefficients& arguments, LowrankRange columns)
      : arguments_(arguments),
        shape_(arguments.shape),
        columns_(columns),
        stride_(lowrank_stride(shape_.rows)) {
    std::fill_n(sums_[0], kLowrankMaxRank * kLowrankStrip, 0.0f);
  }

  void add_rows() {
    for (std::size_t row = 0; row < shape_.rows; row += kLowrankRows)
      add_tile(row, std::min(kLowrankRows, shape_.rows - row));
  }

  template <typename T>
  void send() {
    T* values = static_cast<T*>(arguments_.values) + columns_.first;
    for (std::size_t j = 0; j < shape_.rank; ++j)
      for (std::size_t i = 0; i < columns_.count; i += kLowrankChains)
        send_block(sums_[j] + i, values + j * shape_.columns + i, columns_.count - i);
  }

  /// Writes the residual. If a sum overflowed f32, the residual keeps its old values.
  void store_residual() {
    if constexpr (!std::is_same_v<E, NoValues>) {
      const bool keeps = largest_bits(sums_[0], kLowrankMaxRank * kLowrankStrip) >= kInfinityBits;
      for (std::size_t row = 0; row < shape_.rows; ++row)
        keeps ? keep_residual_row(row) : store_residual_row(row);
    }
  }

 private:
  SentValues<G, E> row_values(std::size_t row) const {
    return {arguments_.sent, offset_of(row), columns_.count};
  }

  void add_tile(std::size_t first, std::size_t rows) {
    for (std::size_t row = 0; row < rows; ++row) {
      SentValues<G, E> values = row_values(first + row);
      for (std::size_t i = 0; i < columns_.count; i += kLowrankChains) values.load(i, p_[row] + i);
    }
    for (std::size_t j = 0; j < shape_.rank; ++j)
      for (std::size_t i = 0; i < columns_.count; i += kLowrankChains) {
        Chains sums = Chains::zero();
        const float* basis = arguments_.basis + j * stride_ + first;
        for (std::size_t row = 0; row < rows; ++row) sums.add(p_[row] + i, basis[row]);
        sums.add(sums_[j] + i);
        sums.store(sums_[j] + i);
      }
  }

  template <typename T>
  void send_block(float* own, T* values, std::size_t count) {
    Chains sent = Chains::of(own);
    sent.scale(arguments_.factor);
    store_partial(sent, values, count);
    for (std::size_t i = 0; i < std::min(count, kLowrankChains); ++i)
      if constexpr (std::is_same_v<T, Bf16>)
        own[i] = quotient(to_f32(values[i]), arguments_.factor);
      else
        values[i] = canonical(values[i]);
  }

  std::size_t offset_of(std::size_t row) const { return row * shape_.columns + columns_.first; }

  void keep_residual_row(std::size_t row) {
    const ErrorFeedback& feedback = arguments_.sent.feedback;
    if (feedback.residual_in == feedback.residual_out) return;
    std::copy_n(static_cast<const E*>(feedback.residual_in) + offset_of(row), columns_.count,
                static_cast<E*>(feedback.residual_out) + offset_of(row));
  }

  void store_residual_row(std::size_t row) {
    E* residual = static_cast<E*>(arguments_.sent.feedback.residual_out) + offset_of(row);
    SentValues<G, E> values = row_values(row);
    for (std::size_t i = 0; i < columns_.count; i += kLowrankChains) {
      values.load(i, p_[0]);
      Chains left = Chains::of(p_[0]);
      const Chains decoded =
          row_value(arguments_.basis + row, stride_, sums_[0] + i, kLowrankStrip, shape_.rank);
      for (std::size_t k = 0; k < kChainVectors; ++k)
        left.vectors[k] = hn::Sub(left.vectors[k], decoded.vectors[k]);
      store_partial(left, residual + i, columns_.count - i);
    }
  }

  const LowrankCoefficients& arguments_;
  const LowrankShape& shape_;
  const LowrankRange columns_;
  const std::size_t stride_;
  alignas(kCacheLine) float sums_[kLowrankMaxRank][kLowrankStrip];
  alignas(kCacheLine) float p_[kLowrankRows][kLowrankStrip];
};

void lowrank_coefficients_on(const LowrankCoefficients& arguments, LowrankRange columns) {
  const DefaultFloatMode mode;
  visit_sent(arguments.sent, [&](auto gradient, auto residual) {
    for (std::size_t i = 0; i < columns.count; i += kLowrankStrip) {
      const std::size_t count = std::min(kLowrankStrip, columns.count - i);
      Strip<decltype(gradient), decltype(residual)> strip(arguments, {columns.first + i, count});
      strip.add_rows();
      if (arguments.dtype == Dtype::kBf16)
        strip.template send<Bf16>();
      else
        strip.template send<float>();
      strip.store_residual();
    }
  });
}

template <typename T>
void decode_row(const LowrankDecode& arguments, std::size_t row) {
  const LowrankShape& shape = arguments.shape;
  const std::size_t stride = lowrank_stride(shape.columns);
  T* output = static_cast<T*>(arguments.to.output) + row * shape.columns;
  Input<T, kLowrankChains> old(output, shape.columns);
  for (std::size_t i = 0; i < shape.columns; i += kLowrankChains) {
    Chains value = row_value(arguments.basis + row, lowrank_stride(shape.rows),
                             arguments.coefficients + i, stride, shape.rank);
    if (arguments.to.mode == DecodeMode::kAdd) {
      alignas(kCacheLine) float values[kLowrankChains];
      value.store(values);
      value = Chains::of(old.tile(i));
      value.add(values, arguments.to.factor);
    } else {
      value.scale(arguments.to.factor);
    }
    store_partial(value, output + i, shape.columns - i);
  }
}

void lowrank_decode_on(const LowrankDecode& arguments, LowrankRange rows) {
  const DefaultFloatMode mode;
  visit_gradient_dtype(arguments.to.dtype, [&](auto value) {
    for (std::size_t row = rows.first; row < rows.first + rows.count; ++row)
      decode_row<decltype(value)>(arguments, row);
  });
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

TERSOR_DISPATCHED(void, lowrank_project,
                  (const EncodeInput& sent, const LowrankShape& shape, LowrankRange rows,
                   const float* directions, float* projected),
                  (sent, shape, rows, directions, projected))
TERSOR_DISPATCHED(void, lowrank_orthonormalize, (const LowrankShape& shape, float* basis),
                  (shape, basis))
TERSOR_DISPATCHED(void, lowrank_coefficients,
                  (const LowrankCoefficients& arguments, LowrankRange columns),
                  (arguments, columns))
TERSOR_DISPATCHED(void, lowrank_decode, (const LowrankDecode& arguments, LowrankRange rows),
                  (arguments, rows))

namespace {

/// Computes one column of Q. `memory` may be null.
void compute_direction(const float* memory, const LowrankShape& shape, std::size_t j,
                       std::uint32_t parameter, float* column) {
  float most = 0;
  for (std::size_t c = 0; memory != nullptr && c < shape.columns; ++c)
    most = std::max(most, std::fabs(memory[c]));
  if (most == 0) {
    for (std::size_t c = 0; c < shape.columns; ++c)
      column[c] = lowrank_random(std::uint64_t{c} * shape.rank + j, parameter);
    return;
  }
  const PowerOfTwo power = to_unit(most);
  for (std::size_t c = 0; c < shape.columns; ++c) column[c] = power(memory[c]);
}

}  // namespace

void lowrank_directions(const float* memory, const LowrankShape& shape, std::uint32_t parameter,
                        float* directions) {
  const DefaultFloatMode mode;
  const std::size_t stride = lowrank_stride(shape.columns);
  for (std::size_t j = 0; j < shape.rank; ++j) {
    float* column = directions + j * stride;
    compute_direction(memory == nullptr ? nullptr : memory + j * shape.columns, shape, j, parameter,
                      column);
    std::fill(column + shape.columns, column + stride, 0.0f);
  }
}

}  // namespace tersor::kernels
#endif
