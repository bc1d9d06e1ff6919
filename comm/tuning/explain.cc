// Tuner::explain: the figures and the choices, in sentences.
#include "comm/tuning/text.h"
#include "comm/tuning/tuner.h"

namespace tersor {
namespace {

std::string way_text(const AutoChoice& choice) {
  return choice.codec + " " + std::string(algorithm_name(choice.algorithm)) + ", chunks of " +
         std::to_string(choice.chunk_count);
}

std::string line_text(const Alternative& one, const std::string& reason) {
  const std::string measured =
      one.measured > 0 ? ", measured " + seconds_text(one.measured) : ", not measured";
  return "  " + way_text(one.choice) + ": predicted " + seconds_text(one.predicted) + measured +
         "; " + reason + "\n";
}

std::string shape_text(Dtype dtype, std::size_t count) {
  return std::to_string(count) + " values of " + std::string(dtype_name(dtype)) + "\n";
}

std::string trials_text(const Trials& trials) {
  std::string text = line_text(trials.alternatives()[trials.chosen()],
                               trials.settled() ? trials.reason(trials.chosen()) : "still trying");
  for (std::size_t i = 0; i < trials.alternatives().size(); ++i)
    if (i != trials.chosen()) text += line_text(trials.alternatives()[i], trials.reason(i));
  return text;
}

// Of these nothing is tried here: a reducer begins with one.
std::string predicted_text(const std::vector<Alternative>& all) {
  std::string text;
  for (const Alternative& one : all)
    text += "  " + way_text(one.choice) + ": predicted " + seconds_text(one.predicted) + "\n";
  return text;
}

}  // namespace

std::string Tuner::Impl::explain() const {
  std::string text = "auto: " + std::to_string(channel_->ranks()) + " ranks; link of " +
                     rate_text(network_.link.seconds_per_byte) + ", " +
                     seconds_text(network_.link.latency) + " of latency and " +
                     seconds_text(network_.link.seconds_per_message) + " a message (" +
                     (options_.link ? "as given" : "measured") + ")\n";
  for (const auto& [shape, trials] : trials_)
    text += shape_text(shape.first, shape.second) + trials_text(trials);
  for (const auto& [gradient, all] : predicted_)
    text += shape_text(gradient.dtype, gradient.count) + predicted_text(all);
  return text;
}

}  // namespace tersor
