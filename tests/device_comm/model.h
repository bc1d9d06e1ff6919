// A small model in either memory, and the reducer of its gradients.
#pragma once

#include "tests/device_comm/steps.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace tersor::test {

struct Shape {
  const char* name;
  std::size_t rows, columns;

  std::size_t count() const { return rows * std::max<std::size_t>(columns, 1); }
};

inline constexpr Shape kShapes[] = {{"first.weight", 60, 70},
                                    {"first.bias", 70, 0},
                                    {"second.weight", 50, 41},
                                    {"second.bias", 41, 0},
                                    {"third.weight", 90, 60}};

inline ReducerOptions options_of(const Location& location) {
  return {.rules = {{"*.bias", "bf16"}, {"second.*", "topk:density=0.05+ef"}, {"*", "int8+ef"}},
          .bucket_bytes = 8192,
          .chunk_count = 2048,
          .seed = 5,
          .stream = location.stream};
}

/// A rank's model with the reducer.
class Model {
 public:
  Model(Transport& transport, const Location& location, const ReducerOptions& options)
      : rank_(transport.rank()), reducer_(transport, options) {
    for (const Shape& shape : kShapes) add(shape, location);
  }

  GradientReducer& reducer() { return reducer_; }

  void add(const Shape& shape, const Location& location) {
    shapes_.push_back(shape);
    gradients_.push_back(std::make_unique<PlacedValues>(shape.count(), Dtype::kF32, location));
    reducer_.add(shape.name, gradients_.back()->span(), shape.rows, shape.columns);
  }

  /// Gradients are ready from the last layer to the first. The layer `left_out` has no gradient in
  /// this step.
  Values step(int index, int left_out = -1) {
    for (std::size_t i = shapes_.size(); i-- > 0;) {
      if (static_cast<int>(i) == left_out) continue;
      write_one(i, index);
      reducer_.ready(shapes_[i].name);
    }
    reducer_.wait();
    return read();
  }
  /// The parts of a step.
  void write(int index) {
    for (std::size_t i = 0; i < shapes_.size(); ++i) write_one(i, index);
  }
  void reduce() {
    for (std::size_t i = shapes_.size(); i-- > 0;) reducer_.ready(shapes_[i].name);
    reducer_.wait();
  }
  Values read() const {
    Values all;
    for (const auto& gradient : gradients_) append(all, gradient->read());
    return all;
  }

 private:
  void write_one(std::size_t i, int index) {
    gradients_[i]->write(testing::gaussian(
        shapes_[i].count(), static_cast<std::uint64_t>(index * 100 + rank_ * 10) + i));
  }

  int rank_;
  std::vector<Shape> shapes_;
  std::vector<std::unique_ptr<PlacedValues>> gradients_;
  GradientReducer reducer_;
};

}  // namespace tersor::test
