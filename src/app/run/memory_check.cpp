#include "app/run/memory_check.h"

#include <algorithm>

#include <fmt/core.h>

#include "dkfac/core/error.h"
#include "dkfac/data/dataset.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/nn/kfac_attach.h"

#include "core/shared/available_memory.h"
#include "nn/shared/memory.h"

namespace dkfac::app {

void check_memory(double bytes, const std::string& what, const std::string& remedy) {
  const auto available = available_memory();
  if (!available || bytes <= *available) return;
  throw InvalidArgument(fmt::format("{} of memory at least, and there are {}; {}",
                                    what + " need " + bytes_text(bytes), bytes_text(*available),
                                    remedy));
}

void check_data_memory(const Config& config) {
  const DataConfig& data = config.data;
  check_memory(data::synthetic_bytes(data_source(config)),
               fmt::format("[config] data.synthetic_train = {} and data.synthetic_test = {} images "
                           "with data.synthetic_size = {}",
                           data.synthetic_train, data.synthetic_test, data.synthetic_size),
               "lower one of them");
}

double optimizer_bytes(const Config& config, const nn::ModelOptions& options, int ranks, int here) {
  const auto element = static_cast<double>(size_of(master_type(config)));
  const bool second = config.optimizer.has_curvature();
  const optim::OptimizerOptions all = optimizer_options(config);
  const optim::KfacOptions& kfac = all.kfac;
  const int states = optim::states_of(config.optimizer.type, all);
  double parameters = 0, averages = 0, earlier = 0, inverses = 0;
  const std::vector<LayerSpec> specs = nn::layer_specs(options, config.train.global_batch);
  const kfac::CurvatureOptions curvature = kfac::with_block_width(kfac.curvature, specs);
  for (const LayerSpec& spec : specs) {
    parameters += static_cast<double>(dkfac::weight_numel(spec) + dkfac::bias_numel(spec));
    if (!second) continue;
    const kfac::CurvatureBytes bytes = kfac::curvature_bytes(spec, curvature);
    averages += static_cast<double>(bytes.averages);
    earlier += static_cast<double>(bytes.earlier);
    inverses += static_cast<double>(bytes.inverses);
  }
  const double gradients = parameters * element, momentum = states * gradients;
  if (!second) return here * (gradients + momentum);
  const double workers = std::max(1.0, kfac.curvature.distribution.grad_worker_fraction * ranks);
  const double masters = kfac.curvature.communication.weight_wire ? parameters * element : 0;
  const double kept = averages + earlier + workers * (inverses + momentum + masters);
  return here * (gradients + averages + kept / ranks);
}

namespace {

/// Returns the bytes of the network alone, before any pass.
double network_bytes(const nn::ModelOptions& options) {
  const nn::MemoryPlan plan = nn::plan_memory(options, 1, nn::Mode::eval);
  return static_cast<double>(plan.parameters + plan.gradients + plan.buffers);
}

std::string network_text(const nn::ModelOptions& options) {
  return fmt::format("model.name = \"{}\" of width {} with {} x {} x {} pixels", options.name,
                     options.width, options.input[0], options.input[1], options.input[2]);
}

/// Formats "optimizer.type = "kfac" on 2 ranks of a process".
std::string optimizer_text(const Config& config, int here) {
  return fmt::format("optimizer.type = \"{}\" on {} rank{} of a process",
                     name_of(config.optimizer.type), here, here == 1 ? "" : "s");
}

/// Returns the bytes of the network and a pass over `samples`. Extrapolates from one and two
/// samples as doubles, which do not overflow.
double pass_bytes(const nn::ModelOptions& options, std::int64_t samples, nn::Mode mode) {
  const auto total = [&](std::int64_t batch) {
    return static_cast<double>(nn::plan_memory(options, batch, mode).total());
  };
  const double one = total(1), each = total(2) - one;
  return one + each * static_cast<double>(samples - 1);
}

constexpr const char* kSmallerNetwork =
    "lower model.width, or use smaller images (data.image_size, data.synthetic_size), fewer "
    "--ranks or, where factors are too wide, another optimizer.type";

}  // namespace

void check_network_memory(const nn::ModelOptions& options) {
  check_memory(network_bytes(options), "[model] " + network_text(options),
               "use a narrower network or smaller images");
}

void check_network_memory(const Config& config, const nn::ModelOptions& options, int ranks,
                          int here) {
  check_memory(
      here * network_bytes(options) + optimizer_bytes(config, options, ranks, here),
      fmt::format("[config] {} and {}", network_text(options), optimizer_text(config, here)),
      kSmallerNetwork);
}

void check_model_memory(const Config& config, const nn::ModelOptions& options, std::int64_t samples,
                        int ranks, int here) {
  check_memory(
      here * pass_bytes(options, samples, nn::Mode::train) +
          optimizer_bytes(config, options, ranks, here),
      fmt::format("[config] {}, {} samples at a time and {}", network_text(options), samples,
                  optimizer_text(config, here)),
      std::string("lower train.global_batch, raise train.micro_batches, ") + kSmallerNetwork);
}

void check_evaluation_memory(const Config& config, const nn::ModelOptions& options,
                             std::int64_t samples, int ranks, int here) {
  check_memory(
      here * pass_bytes(options, samples, nn::Mode::eval) +
          optimizer_bytes(config, options, ranks, here),
      fmt::format(
          "[config] run.eval_batch = {}, which is {} test images on a rank at a time, {} and {}",
          config.run.eval_batch, samples, network_text(options), optimizer_text(config, here)),
      std::string("lower run.eval_batch, ") + kSmallerNetwork);
}

void check_evaluation_memory(const Config& config, const nn::ModelOptions& options,
                             std::int64_t samples, int here) {
  check_memory(here * pass_bytes(options, samples, nn::Mode::eval),
               fmt::format("[config] run.eval_batch = {}, which is {} test images on a rank at a "
                           "time, and {}",
                           config.run.eval_batch, samples, network_text(options)),
               "lower run.eval_batch, or use fewer --ranks");
}

}  // namespace dkfac::app
