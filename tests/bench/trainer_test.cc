// The benchmark's trainer: valid and damaged data sets, gradients compared with finite differences,
// and bitwise reproducible runs, alone or with other ranks. Long because each part of the trainer
// has its tests here.
#include "bench/train/trainer/dataset.h"
#include "bench/train/trainer/network.h"
#include "bench/train/trainer/recipe.h"
#include "bench/train/trainer/shard.h"

#include <gtest/gtest.h>
#include <tersor/error.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>

namespace trainer {
namespace {

using Bytes = std::vector<std::uint8_t>;
namespace fs = std::filesystem;

// ---- Files -------------------------------------------------------------------------------------

class DatasetFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("trainer_test_" + std::to_string(getpid()) + "_" + test->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const Bytes& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return folder_ / name;
  }

  /// Four valid files: 20 training images and 10 test images of 2 x 3 pixels.
  void write_set() const {
    write("train-images-idx3-ubyte", idx({20, 2, 3}, 120));
    write("train-labels-idx1-ubyte", idx({20}, 20));
    write("t10k-images-idx3-ubyte", idx({10, 2, 3}, 60));
    write("t10k-labels-idx1-ubyte", idx({10}, 10));
  }

  /// An IDX file of `count` bytes 0, 1, …, 9, 0, … with a header of `dimensions`.
  static Bytes idx(const std::vector<std::uint32_t>& dimensions, std::size_t count) {
    Bytes bytes = {0, 0, 8, static_cast<std::uint8_t>(dimensions.size())};
    for (const std::uint32_t dimension : dimensions)
      for (int shift = 24; shift >= 0; shift -= 8)
        bytes.push_back(static_cast<std::uint8_t>(dimension >> shift));
    for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(i % 10));
    return bytes;
  }

  fs::path folder_;
};

Bytes gzip(const Bytes& plain) {
  const std::string name =
      (fs::temp_directory_path() / "trainer_test_gzip.").string() + std::to_string(getpid());
  gzFile file = gzopen(name.c_str(), "wb");
  gzwrite(file, plain.data(), static_cast<unsigned>(plain.size()));
  gzclose(file);
  Bytes bytes(fs::file_size(name));
  std::ifstream(name, std::ios::binary)
      .read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  fs::remove(name);
  return bytes;
}

/// The text of the Error thrown by `call`. Every text must explain how to get the data.
std::string dataset_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const tersor::Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("dataset-fashion-mnist"), std::string::npos) << message;
    EXPECT_NE(message.find("--data DIR"), std::string::npos) << message;
    return message;
  }
  return "nothing was thrown";
}

#define EXPECT_SAYS(message, words) EXPECT_NE((message).find(words), std::string::npos) << message

TEST_F(DatasetFiles, PlainAndGzippedIdxReadTheSame) {
  const Bytes plain = idx({3, 2, 2}, 12);
  for (const Bytes& bytes : {plain, gzip(plain)}) {
    const IdxArray array = read_idx(write("file", bytes), 3);
    EXPECT_EQ(array.dimensions, (std::vector<std::size_t>{3, 2, 2}));
    EXPECT_EQ(array.values, Bytes(plain.begin() + 16, plain.end()));
  }
}

TEST_F(DatasetFiles, EveryTruncationIsAnError) {
  const Bytes plain = idx({3, 2, 2}, 12), gzipped = gzip(plain);
  for (const Bytes& whole : {plain, gzipped})
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
      EXPECT_THROW(read_idx(write("file", Bytes(whole.begin(), whole.begin() + bytes)), 3),
                   tersor::Error)
          << bytes << " of " << whole.size();
}

TEST_F(DatasetFiles, FlippedBitInGzipIsAnError) {
  const Bytes good = gzip(idx({100, 2, 2}, 400));
  for (std::size_t at = 10; at < good.size(); ++at) {  // the first ten fields are names and times
    Bytes bad = good;
    bad[at] ^= 1;
    EXPECT_THROW(read_idx(write("file", bad), 3), tersor::Error) << at << " of " << good.size();
  }
}

TEST_F(DatasetFiles, WrongHeadersAreErrors) {
  const auto message = [this](const Bytes& bytes) {
    return dataset_error([&] { read_idx(write("file", bytes), 3); });
  };
  EXPECT_SAYS(message(idx({3, 2}, 6)), "in 3 dimensions");
  EXPECT_SAYS(message(idx({3, 2, 2}, 13)), "more bytes than its header says");
  EXPECT_SAYS(message(idx({~0u, ~0u, ~0u}, 12)), "more than a gigabyte");
  Bytes floats = idx({3, 2, 2}, 12);
  floats[2] = 0x0d;
  EXPECT_SAYS(message(floats), "not an IDX file of unsigned bytes");
  EXPECT_SAYS(dataset_error([this] { read_idx(folder_ / "absent", 3); }), "No such file");
  EXPECT_NE(dataset_error([this] { read_idx(folder_, 1); }), "nothing was thrown");
}

std::vector<std::uint32_t> first_images(std::size_t count) {
  std::vector<std::uint32_t> indices(count);
  std::iota(indices.begin(), indices.end(), 0u);
  return indices;
}

TEST_F(DatasetFiles, LoadsAndNormalizesTrainingAndTestSets) {
  write_set();
  fs::remove(folder_ / "train-labels-idx1-ubyte");
  write("train-labels-idx1-ubyte.gz", gzip(idx({20}, 20)));
  const TrainingData sets = load_training_data(folder_);
  EXPECT_EQ(sets.train.count(), 20u);
  EXPECT_EQ(sets.test.count(), 10u);
  EXPECT_EQ(sets.train.pixels, 6u);
  Examples all;
  sets.train.read(first_images(20), all);
  const auto sum = [&](auto term) {
    return std::transform_reduce(all.inputs.begin(), all.inputs.end(), 0.0, std::plus<>(), term);
  };
  EXPECT_NEAR(sum([](double x) { return x; }) / 120, 0, 1e-6);
  EXPECT_NEAR(sum([](double x) { return x * x; }) / 120, 1, 1e-6);
}

TEST_F(DatasetFiles, RejectsMismatchedFiles) {
  const auto message = [this](const std::string& name, const Bytes& bytes) {
    write_set();
    write(name, bytes);
    return dataset_error([this] { load_training_data(folder_); });
  };
  EXPECT_SAYS(message("train-labels-idx1-ubyte", idx({19}, 19)), "20 images, but 19 labels");
  Bytes labels = idx({20}, 20);
  labels.back() = 10;
  EXPECT_SAYS(message("train-labels-idx1-ubyte", labels), "label is 10");
  EXPECT_SAYS(message("t10k-images-idx3-ubyte", idx({10, 3, 3}, 90)), "test images 9");
  EXPECT_SAYS(message("train-images-idx3-ubyte", idx({0, 2, 3}, 0)), "0 images, but 20 labels");
  fs::remove(folder_ / "train-images-idx3-ubyte");
  EXPECT_SAYS(dataset_error([this] { load_training_data(folder_); }), "train-images-idx3-ubyte");
}

// ---- The network -------------------------------------------------------------------------------

/// Images of uniform noise with a bright pixel marking the class.
Dataset synthetic(std::size_t count, std::size_t pixels, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Dataset dataset{.pixels = pixels,
                  .images = Bytes(count * pixels),
                  .labels = Bytes(count),
                  .classes = 10,
                  .mean = 100.0f,
                  .scale = 1.0f / 64};
  for (std::uint8_t& pixel : dataset.images) pixel = static_cast<std::uint8_t>(random() % 200);
  for (std::size_t i = 0; i < count; ++i) {
    dataset.labels[i] = static_cast<std::uint8_t>(random() % 10);
    dataset.images[i * pixels + dataset.labels[i]] = 255;
  }
  return dataset;
}

constexpr std::size_t kWidths[] = {12, 17, 9, 10};
const GradientReady kIgnore = [](const Parameter&) {};

std::span<float> values_of(const Parameter& parameter) { return parameter.values.as<float>(); }
std::span<float> gradient_of(const Parameter& parameter) { return parameter.gradient.as<float>(); }

/// Returns the mean loss.
double forward_backward(Network& network, const Dataset& dataset,
                        std::span<const std::uint32_t> batch, const GradientReady& ready) {
  Examples examples;
  dataset.read(batch, examples);
  const double loss = network.forward(examples).loss;
  network.backward(ready);
  return loss;
}

/// Independent reference: the outputs of one layer for one image, in double precision.
std::vector<double> layer_outputs(const Parameter& weight, const Parameter& bias,
                                  const std::vector<double>& inputs) {
  std::vector<double> outputs(values_of(bias).begin(), values_of(bias).end());
  for (std::size_t row = 0; row < weight.rows; ++row)
    for (std::size_t column = 0; column < weight.columns; ++column)
      outputs[row] += values_of(weight)[row * weight.columns + column] * inputs[column];
  return outputs;
}

std::vector<double> reference_scores(std::span<const Parameter> parameters, const Dataset& dataset,
                                     std::size_t image) {
  Examples example;
  dataset.read(std::vector{static_cast<std::uint32_t>(image)}, example);
  std::vector<double> values(example.inputs.begin(), example.inputs.end());
  for (std::size_t p = 0; p < parameters.size(); p += 2) {
    values = layer_outputs(parameters[p], parameters[p + 1], values);
    if (p + 2 < parameters.size())
      for (double& value : values) value = std::max(value, 0.0);
  }
  return values;
}

double reference_loss(std::span<const Parameter> parameters, const Dataset& dataset,
                      std::span<const std::uint32_t> batch) {
  double loss = 0;
  for (const std::uint32_t image : batch) {
    const std::vector<double> scores = reference_scores(parameters, dataset, image);
    double sum = 0;
    for (const double score : scores) sum += std::exp(score);
    loss += std::log(sum) - scores[dataset.labels[image]];
  }
  return loss / static_cast<double>(batch.size());
}

TEST(Perceptron, GradientsMatchFiniteDifferences) {
  const Dataset dataset = synthetic(32, 12, 5);
  Network network(kWidths, 3);
  const auto batch = first_images(32);
  const double loss = forward_backward(network, dataset, batch, kIgnore);
  EXPECT_NEAR(loss, reference_loss(network.parameters(), dataset, batch), 1e-5);
  for (const Parameter& parameter : network.parameters())
    for (std::size_t i = 0; i < parameter.count(); ++i) {
      float& value = values_of(parameter)[i];
      const float retained = value, step = 0x1p-12f;
      value = retained + step;
      const double width_above = value,
                   above = reference_loss(network.parameters(), dataset, batch);
      value = retained - step;
      const double below = reference_loss(network.parameters(), dataset, batch);
      const double slope = (above - below) / (width_above - value);
      value = retained;
      EXPECT_NEAR(gradient_of(parameter)[i], slope, 1e-3) << parameter.name << " at " << i;
    }
}

TEST(Perceptron, GradientsAreFinalAtReadyCallback) {
  const Dataset dataset = synthetic(8, 12, 5);
  Network network(kWidths, 3);
  std::vector<std::string> names;
  std::vector<std::vector<float>> announced;
  forward_backward(network, dataset, first_images(8), [&](const Parameter& parameter) {
    names.push_back(parameter.name);
    announced.emplace_back(gradient_of(parameter).begin(), gradient_of(parameter).end());
  });
  EXPECT_EQ(names, (std::vector<std::string>{"layer3.weight", "layer3.bias", "layer2.weight",
                                             "layer2.bias", "layer1.weight", "layer1.bias"}));
  for (const Parameter& parameter : network.parameters()) {
    const auto at = std::ranges::find(names, parameter.name) - names.begin();
    EXPECT_TRUE(std::ranges::equal(announced[at], gradient_of(parameter))) << parameter.name;
  }
}

TEST(Perceptron, AccuracyMatchesReference) {
  const Dataset dataset = synthetic(1201, 12, 5);  // several classification batches, last one short
  Network network(kWidths, 3);
  std::size_t right = 0;
  for (std::size_t image = 0; image < dataset.count(); ++image) {
    const auto scores = reference_scores(network.parameters(), dataset, image);
    right += std::ranges::max_element(scores) - scores.begin() == dataset.labels[image];
  }
  EXPECT_NEAR(accuracy(network, dataset) * 1201, static_cast<double>(right), 1);
}

TEST(Perceptron, InitialWeightsAreSeededWithHeVariance) {
  const std::size_t widths[] = {200, 150, 10};
  const Network one(widths, 1), again(widths, 1), other(widths, 2);
  const auto weights = values_of(one.parameters()[0]);
  EXPECT_TRUE(std::ranges::equal(weights, values_of(again.parameters()[0])));
  EXPECT_FALSE(std::ranges::equal(weights, values_of(other.parameters()[0])));
  const double squares = std::transform_reduce(weights.begin(), weights.end(), 0.0, std::plus<>(),
                                               [](double x) { return x * x; });
  EXPECT_NEAR(squares / 30000, 2.0 / 200, 0.02 * 2 / 200);
}

TEST(Perceptron, ParameterNamesAndShapes) {
  Network network(kWidths, 3);
  const auto& parameters = network.parameters();
  ASSERT_EQ(parameters.size(), 6u);
  EXPECT_EQ(parameters[0].name, "layer1.weight");
  EXPECT_EQ(parameters[0].rows, 17u);
  EXPECT_EQ(parameters[0].columns, 12u);
  EXPECT_EQ(parameters[5].rows, 10u);
  EXPECT_EQ(parameters[5].columns, 1u);
  for (const Parameter& p : parameters) {
    EXPECT_EQ(p.values.count(), p.rows * p.columns) << p.name;
    EXPECT_EQ(p.gradient.count(), p.rows * p.columns) << p.name;
  }
}

TEST(Perceptron, RejectsWrongImageSizeAndNoLayers) {
  Network network(kWidths, 3);
  EXPECT_THROW(accuracy(network, synthetic(8, 13, 5)), std::invalid_argument);
  EXPECT_THROW(Network(std::span(kWidths).first(1), 3), std::invalid_argument);
}

/// All parameters of rank 0 of four after `steps` steps, with a model of the default widths.
std::vector<float> train_alone(const Dataset& dataset, std::uint64_t seed, std::size_t steps) {
  Network network(TrainingRecipe{}.widths(dataset.pixels, dataset.classes), seed);
  Shard shard(dataset.count(), {0, 4}, 32, seed);
  for (std::size_t step = 0; step < steps; ++step) {
    forward_backward(network, dataset, shard.batch(step), kIgnore);
    network.descend(0.01f, 0.9f);
  }
  std::vector<float> values;
  for (const Parameter& p : network.parameters())
    values.insert(values.end(), values_of(p).begin(), values_of(p).end());
  return values;
}

TEST(Perceptron, SameSeedGivesSameBitsInConcurrentRanks) {
  const Dataset dataset = synthetic(256, 784, 5);
  const std::vector<float> alone = train_alone(dataset, 7, 12);
  std::vector<std::vector<float>> beside(4);
  {
    std::vector<std::jthread> ranks;
    for (auto& values : beside) ranks.emplace_back([&] { values = train_alone(dataset, 7, 12); });
  }
  for (const auto& values : beside) EXPECT_EQ(values, alone);
  EXPECT_NE(train_alone(dataset, 8, 12), alone);
}

// ---- Shards, schedule, optimizer ---------------------------------------------------------------

TEST(Shard, RanksReceiveDisjointImages) {
  std::multiset<std::uint32_t> seen;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    Shard shard(100, {rank, 3}, 11, 1);
    ASSERT_EQ(shard.steps_per_epoch(), 3u);
    for (std::size_t step = 0; step < 3; ++step)
      for (const std::uint32_t index : shard.batch(step)) seen.insert(index);
  }
  EXPECT_EQ(seen.size(), 99u);
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), 99u);
}

TEST(Shard, OrderIsReproducibleAndDependsOnSeedAndEpoch) {
  const auto batch = [](std::uint64_t seed, std::uint32_t rank, std::size_t step) {
    Shard shard(1000, {rank, 4}, 50, seed);
    const auto indices = shard.batch(step);
    return std::vector<std::uint32_t>(indices.begin(), indices.end());
  };
  EXPECT_EQ(batch(1, 0, 7), batch(1, 0, 7));
  EXPECT_NE(batch(1, 0, 0), batch(2, 0, 0));
  EXPECT_NE(batch(1, 0, 0), batch(1, 0, 5));
  Shard shard(1000, {0, 4}, 50, 1);
  shard.batch(13);  // unaffected by another epoch in between
  EXPECT_TRUE(std::ranges::equal(shard.batch(7), batch(1, 0, 7)));
}

TEST(Shard, RejectsLessThanOneBatch) {
  EXPECT_THROW(Shard(100, {0, 4}, 26, 1), std::invalid_argument);
  EXPECT_THROW(Shard(100, {0, 4}, 0, 1), std::invalid_argument);
  EXPECT_THROW(Shard(100, {0, 0}, 1, 1), std::invalid_argument);
}

TEST(TrainingRecipe, LearningRateWarmsUpAndDecays) {
  const TrainingRecipe recipe{.epochs = 5, .learning_rate = 0.5f, .warmup_epochs = 2};
  std::vector<float> rates;
  for (std::size_t step = 0; step < 100; ++step) rates.push_back(recipe.learning_rate_at(step, 20));
  const auto peak = std::ranges::max_element(rates);
  EXPECT_NEAR(static_cast<double>(peak - rates.begin()), 40, 1);
  EXPECT_NEAR(*peak, 0.5, 0.01);
  EXPECT_NEAR(rates[20], 0.25, 0.01);  // linear warm-up
  EXPECT_NEAR(rates[70], 0.25, 0.01);  // half of a cosine decay
  EXPECT_TRUE(std::is_sorted(rates.begin(), peak));
  EXPECT_TRUE(std::is_sorted(peak, rates.end(), std::greater<>()));
  EXPECT_GT(rates.back(), 0.0f);
  EXPECT_LT(rates.back(), 0.001f);
}

TEST(TrainingRecipe, LearningRateWithoutWarmupOrOnlyWarmup) {
  TrainingRecipe recipe{.epochs = 1, .learning_rate = 0.5f, .warmup_epochs = 0};
  EXPECT_NEAR(recipe.learning_rate_at(0, 100), 0.5, 1e-3);
  recipe.warmup_epochs = 3;
  EXPECT_LT(recipe.learning_rate_at(99, 100), 0.5f);
}

TEST(Perceptron, DescendsWithMomentum) {
  Network network(kWidths, 3);
  const Parameter& weight = network.parameters()[0];
  const float start = values_of(weight)[4];
  gradient_of(weight)[4] = 2.0f;
  network.descend(0.25f, 0.5f);
  EXPECT_FLOAT_EQ(values_of(weight)[4], start - 0.25f * 2.0f);
  gradient_of(weight)[4] = -1.0f;
  network.descend(0.125f, 0.5f);
  EXPECT_FLOAT_EQ(values_of(weight)[4], start - 0.25f * 2.0f - 0.125f * (0.5f * 2.0f - 1.0f));
}

// ---- Training ----------------------------------------------------------------------------------

/// Ranks as threads. A barrier averages gradients in rank order, like a reducer without a codec.
/// Returns each rank's accuracy on `test`.
std::vector<double> train(const Dataset& train, const Dataset& test, const TrainingRecipe& recipe,
                          std::uint32_t ranks) {
  std::vector<std::span<const Parameter>> all(ranks);
  std::vector<double> accuracies(ranks);
  std::barrier meet(ranks);
  const auto average_own_part = [&](std::uint32_t rank) {
    for (std::size_t p = 0; p < all[0].size(); ++p)
      for (std::size_t i = rank; i < all[0][p].count(); i += ranks) {
        float sum = 0;
        for (const auto& parameters : all) sum += gradient_of(parameters[p])[i];
        for (const auto& parameters : all)
          gradient_of(parameters[p])[i] = sum / static_cast<float>(ranks);
      }
  };
  const auto work = [&](std::uint32_t rank) {
    Network network(recipe.widths(train.pixels, train.classes), 1);
    Shard shard(train.count(), {rank, ranks}, recipe.batch_images, 1);
    all[rank] = network.parameters();
    meet.arrive_and_wait();
    for (std::size_t step = 0; step < recipe.epochs * shard.steps_per_epoch(); ++step) {
      forward_backward(network, train, shard.batch(step), kIgnore);
      meet.arrive_and_wait();
      average_own_part(rank);
      meet.arrive_and_wait();
      network.descend(recipe.learning_rate_at(step, shard.steps_per_epoch()), recipe.momentum);
    }
    accuracies[rank] = accuracy(network, test);
    meet.arrive_and_wait();
  };
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) threads.emplace_back(work, rank);
  threads.clear();
  return accuracies;
}

TEST(Training, LearnsSyntheticClasses) {
  const TrainingRecipe recipe{.hidden_widths = {32, 24},
                              .batch_images = 16,
                              .epochs = 6,
                              .learning_rate = 0.05f,
                              .momentum = 0.9f};
  const Dataset images = synthetic(2000, 20, 1), unseen = synthetic(500, 20, 2);
  for (const std::uint32_t ranks : {1u, 2u, 3u})
    for (const double accuracy : train(images, unseen, recipe, ranks)) EXPECT_GT(accuracy, 0.95);
}

TEST(Training, LearnsAFifthOfFashionMnistInOneEpoch) {
  if (!fs::exists(kFashionMnistFolder))
    GTEST_SKIP() << "no Fashion-MNIST in " << kFashionMnistFolder
                 << "; install the Debian package dataset-fashion-mnist";
  TrainingData sets = load_training_data();
  EXPECT_EQ(sets.train.count(), 60000u);
  EXPECT_EQ(sets.test.count(), 10000u);
  sets.train.labels.resize(12000);
  const auto accuracies =
      train(sets.train, sets.test, {.batch_images = 32, .epochs = 1, .warmup_epochs = 0.25}, 4);
  EXPECT_GT(accuracies[0], 0.75);
  for (const double accuracy : accuracies) EXPECT_EQ(accuracy, accuracies[0]);
}

}  // namespace
}  // namespace trainer
