#include "app/commands/model_info.h"

#include <algorithm>

#include <fmt/core.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/nn/kfac_attach.h"

#include "app/logging/number_text.h"
#include "app/run/memory_check.h"
#include "nn/shared/memory.h"

namespace dkfac::app {

namespace {

constexpr double kMega = 1 << 20;

struct Factors {
  std::int64_t layers = 0, largest_a = 0, largest_g = 0;
  double packed = 0, squares = 0;  ///< Elements.
  double flops = 0;                ///< For inverting all factors once.
};

void add(Factors& all, std::int64_t d) {
  const auto n = static_cast<double>(d);
  all.packed += static_cast<double>(ops::packed_size(d));
  all.squares += n * n;
  all.flops += n * n * n;
}

Factors factors_of(const nn::ModelOptions& options) {
  Factors all;
  for (const LayerSpec& spec : nn::layer_specs(options)) {
    if (!dkfac::has_factors(spec)) continue;
    ++all.layers;
    add(all, dkfac::a_dim(spec));
    add(all, dkfac::g_dim(spec));
    all.largest_a = std::max(all.largest_a, dkfac::a_dim(spec));
    all.largest_g = std::max(all.largest_g, dkfac::g_dim(spec));
  }
  return all;
}

}  // namespace

nn::ModelOptions usual_options(const std::string& name) {
  nn::ModelOptions options{.name = name};
  if (name.starts_with("resnet")) options.input = {32, 32, 3};
  const auto models = {"resnet34", "resnet50", "resnet50-d", "resnet101", "resnet152", "vgg16-bn"};
  if (std::ranges::find(models, name) != models.end()) {
    options.input = {224, 224, 3};
    options.classes = 1000;
  }
  return options;
}

std::string describe_model(const nn::ModelOptions& options, std::int64_t batch) {
  DKFAC_CHECK(batch > 0, "[info] --batch is ", batch, "; it must be > 0");
  check_network_memory(options);
  const auto model = nn::outline_model(options);
  const double forward = nn::forward_flops(*model), training = nn::training_flops(*model);
  const Factors factors = factors_of(options);
  std::string out = model->summary();
  out += fmt::format("{} parameters, images {}x{}x{}, {} classes\n\n", model->parameter_count(),
                     options.input[0], options.input[1], options.input[2], model->outputs());
  out += fmt::format(
      "operations: {:.4g} GMAC forward per image; a training step of {} images {:.4g} GFLOP\n",
      0.5e-9 * forward, batch, 1e-9 * training * static_cast<double>(batch));
  out += fmt::format("\nmemory of a training step of {} images, without the optimizer:\n{}\n",
                     batch, nn::describe(nn::plan_memory(*model, batch, nn::Mode::train)));
  out += fmt::format(
      "K-FAC: {} layers with factors, A up to {}, G up to {}; over all ranks {} MiB packed "
      "factors,\n{} MiB inverses, both f32; inverting all takes {:.4g} GFLOP\n",
      factors.layers, factors.largest_a, factors.largest_g,
      three_digits(4 * factors.packed / kMega), three_digits(4 * factors.squares / kMega),
      1e-9 * factors.flops);
  return out;
}

std::string optimizer_plan(const Config& config, const std::vector<PhasePlan>& phases, int ranks) {
  if (!config.optimizer.has_curvature())
    return make_optimizer(config, comm::make_self())->describe() + '\n';
  // As a training registers its layers: with the largest images and batch of all phases.
  const PhasePlan& first = phases.front();
  nn::ModelOptions options = model_options(first.phase.config, first.data->train, ranks);
  std::int64_t samples = 0;
  for (const PhasePlan& phase : phases) {
    if (image_of(phase).numel() > options.input.numel()) options.input = image_of(phase);
    samples = std::max(samples, phase.phase.config.train.global_batch);
  }
  const optim::OptimizerOptions all = optimizer_options(config);
  const kfac::CurvatureOptions& curvature = all.kfac.curvature;
  const auto element = static_cast<std::int64_t>(size_of(curvature.dtype));
  const bool masters =
      curvature.communication.weight_wire.value_or(curvature.dtype) != curvature.dtype;
  return kfac::describe_plan(nn::layer_names(options), nn::layer_specs(options, samples), curvature,
                             ranks,
                             {.momentum = optim::states_of(config.optimizer.type, all) * element,
                              .masters = masters ? element : 0});
}

}  // namespace dkfac::app
