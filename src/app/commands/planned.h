#pragma once

#include <memory>
#include <string>

#include "dkfac/core/error.h"

#include "app/commands/model_info.h"
#include "app/plan/network.h"
#include "app/plan/strategy.h"
#include "app/run/run_one.h"
#include "app/training/phases.h"

/// What 'dkfac info' and 'dkfac plan' predict alike, for a model or a configuration.
namespace dkfac::app {

/// Whether the topic of a command is a file, not the name of a model.
[[nodiscard]] inline bool is_file(const std::string& topic) {
  return topic.ends_with(".toml") || topic.find('/') != std::string::npos;
}
[[nodiscard]] bool is_model(const std::string& topic);
/// Returns the options of a model as it was published, with the input and classes of the command
/// where it gives them.
template <class Command>
[[nodiscard]] nn::ModelOptions model_options(const Command& command) {
  nn::ModelOptions options = usual_options(command.topic);
  if (!command.input.empty()) {
    DKFAC_CHECK(command.input.size() == 3, "[arguments] --input takes height, width and channels");
    options.input = {command.input[0], command.input[1], command.input[2]};
  }
  if (command.classes > 0) options.classes = command.classes;
  return options;
}

/// Returns the data of each phase. Where photographs are missing, a stand-in has the shape of
/// ImageNet, and `missing` is set.
[[nodiscard]] PhaseData planned_data(const Config& config, DataCache& cache, bool& missing);
inline constexpr const char* kAssumedImages =
    "the plan needs no images, found none, and assumes as many as ImageNet has\n";

/// The network of a phase, with the samples that a rank passes at a time.
[[nodiscard]] planning::Network network_of(const PhasePlan& phase, int ranks);
/// The optimizer of a configuration; intervals that a budget chooses are those that it begins with.
[[nodiscard]] planning::Strategy strategy_of(const Config& config);

/// Predicts the seconds of a step of a phase, where the passes of all ranks together sustain
/// `flops`. Other rates are to those as on an H100, and so are the links.
[[nodiscard]] double step_seconds(const PhasePlan& phase, int ranks, double flops);

}  // namespace dkfac::app
