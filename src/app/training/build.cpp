#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/nn/whitening.h"

#include "app/checkpoint/initial_weights.h"
#include "app/report/settings.h"
#include "app/run/agreement.h"
#include "app/run/memory_check.h"
#include "app/training/state.h"
#include "kfac/shared/curvature_work.h"

namespace dkfac::app {

namespace {

void compare_configurations(TrainState& s) {
  enter(s, "config");
  // Full key paths, so that the first differing line names the key.
  std::string text;
  for (const auto& [key, value] : settings_of(s.result.configuration))
    text += key + " = " + value + "\n";
  on_all_ranks(s.position, [&] { comm::require_equal(*s.comm, text, "the configuration"); });
}

void compare_data(TrainState& s) {
  std::string text;
  const PhasePlan* before = nullptr;
  for (PhasePlan& plan : s.plan) {
    const PhasePlan* last = std::exchange(before, &plan);
    plan.fingerprint =
        last != nullptr && last->data == plan.data
            ? last->fingerprint
            : fmt::format("{:x}-{:x}", fingerprint(plan.data->train), fingerprint(plan.data->test));
    text += plan.fingerprint + ' ';
  }
  on_all_ranks(s.position,
               [&] { comm::require_equal(*s.comm, text, "the data set (its fingerprint)"); });
}

void set_whitening(TrainState& s) {
  if (nn::whitening_kernel(*s.model) == 0) return;
  const data::Dataset& train = s.now->data->train;
  DKFAC_CHECK(train.photos == nullptr, "[whitening] data set '", train.name,
              "' is of photographs, which are not in memory; switch whitening off");
  DKFAC_CHECK(train.mean_image == nullptr,
              "[whitening] filters are of patches without the mean of their channels, and "
              "data.mean_image subtracts another at each pixel; use one of model.whitening and "
              "data.mean_image");
  // Computed on the host, so that the filters are bit-identical on every device.
  Context host(Device::cpu(), {.threads = s.config.run.threads});
  const data::Normalization normalization = data::normalization_of(train);
  const nn::WhiteningImages images{.pixels = train.pixels,
                                   .count = train.count,
                                   .height = train.height,
                                   .width = train.width,
                                   .channels = train.channels,
                                   .mean = normalization.mean,
                                   .stddev = normalization.stddev};
  const nn::WhiteningOptions options{.kernel = nn::whitening_kernel(*s.model)};
  nn::set_whitening(s.ctx, *s.model, nn::whitening_filters(host, images, options));
}

/// Sets the weights of rank 0, from which the others receive them in prepare(). A resumed run has
/// its own.
void set_initial_weights(TrainState& s) {
  const std::string& path = s.config.model.weights;
  if (path.empty() || s.comm->rank() != 0 || !s.checkpoints.resume.empty()) return;
  const safetensors::File file = safetensors::File::read(path);
  const InitialWeights weights = read_initial_weights(s.ctx, *s.model, file);
  if (s.hooks.on_weights) s.hooks.on_weights(describe(weights, path));
}

Config with_failure_folder(const TrainState& s) {
  Config config = s.config;
  std::string& folder = config.optimizer.options.kfac.curvature.inverse.failure_folder;
  if (folder.empty()) folder = s.checkpoints.failures.string();
  return config;
}

/// Returns the peak FLOP/s of all ranks' devices, assuming that all are alike and shared by as many
/// ranks as this one's.
std::optional<double> all_peak_flops(const TrainState& s) {
  const auto one = peak_flops(s.ctx.device(), s.config.run.precision, s.config.run.tf32);
  return one ? std::optional(*one * s.comm->size() / s.ranks_on_device) : std::nullopt;
}

/// Returns a text such as "cuda:0, NVIDIA H100 80GB HBM3".
std::string device_text(Device device) {
  if (!device.is_cuda()) return "cpu";
  return fmt::format(
      "cuda:{}, {}", device.index,
      backend_info().cuda_info.devices.at(static_cast<std::size_t>(device.index)).name);
}

/// Attaches the optimizer with the largest images and batch of all phases, so that its buffers fit
/// every step.
void attach(TrainState& s) {
  nn::AttachOptions options = attach_options(s.config);
  options.stream = s.ctx.stream();
  Shape largest = s.model->input();
  for (const PhasePlan& plan : s.plan) {
    s.model->set_input(image_of(plan));
    check_batch_norms(*s.model, plan, s.comm->size());
    check_rectangular(*s.model, plan.phase.config, plan.data->test);
    if (image_of(plan).numel() > largest.numel()) largest = image_of(plan);
    const Config& config = plan.phase.config;
    options.max_samples = std::max(
        options.max_samples, drawn_samples(config, config.train.global_batch, s.comm->size()));
  }
  s.model->set_input(largest);
  s.attachment.emplace(*s.model, *s.optimizer, options);
  s.model->set_input(image_of(*s.now));
}

/// Checks the memory for a micro-batch of a rank, and for its share of an evaluated batch. On a
/// device the allocator reports missing memory itself.
void check_memory_of(const TrainState& s, const PhasePlan& plan) {
  if (s.ctx.device().is_cuda()) return;
  const Config& config = plan.phase.config;
  const data::Dataset& train = plan.data->train;
  const int ranks = s.comm->size(), here = s.comm->backend() == "in_process" ? ranks : 1;
  const std::int64_t batch = std::min(config.train.global_batch, train.count);
  const std::int64_t samples = batch / (ranks * config.train.micro_batches);
  const nn::ModelOptions options = model_options(config, train, ranks);
  check_model_memory(config, options, std::max<std::int64_t>(1, samples), ranks, here);
  if (config.run.eval_every == 0) return;
  const std::int64_t tested = std::min(config.run.eval_batch, plan.data->test.count) / ranks;
  check_evaluation_memory(config, options, std::max<std::int64_t>(1, tested), ranks, here);
}

void build(TrainState& s) {
  check_memory_of(s, *s.now);
  const Config& config = s.now->phase.config;
  s.model = nn::make_model(s.ctx, model_options(config, s.now->data->train, s.comm->size()));
  s.result.parameters = s.model->parameter_count();
  s.peak_flops = all_peak_flops(s);
  count_operations(*s.model, s.plan);
  for (const PhasePlan& plan : s.plan) check_memory_of(s, plan);
  set_whitening(s);
  set_initial_weights(s);
  s.optimizer = make_optimizer(with_failure_folder(s), s.comm, s.ctx.device());
  attach(s);
  make_loaders(s);
  s.layers = s.attachment->names();
  for (const LayerSpec& spec : s.attachment->specs())
    s.statistic_sizes.push_back(
        statistic_sizes(spec, s.config.optimizer.curvature().statistics.norm_fisher));
  if (s.ctx.device().is_cuda()) s.activities.emplace(s.ctx.device());
  s.timed.emplace(*s.attachment, s.activities ? &*s.activities : nullptr, s.ctx.stream());
  s.model->set_observer(&*s.timed);
  if (s.ctx.device().is_cuda() && s.config.run.graphs && loss_of(s.config) == TrainLoss::softmax)
    s.graphed.emplace(*s.model, &*s.timed, graph_options(s));
  s.sums.emplace(s.ctx);
  s.drawn_sums.emplace(s.ctx);
  s.counters.loss_scale = first_loss_scale(loss_scale_options(s.config));
  if (const TrainConfig& train = s.config.train; train.ema_decay > 0) {
    s.ema.emplace(s.ctx, *s.model,
                  nn::EmaOptions{.decay = train.ema_decay, .interval = train.ema_interval});
  }
}

/// Warns of an option that has no effect on this network.
void tell_idle_split(const TrainState& s) {
  const kfac::CurvatureOptions options = optimizer_options(s.config).kfac.curvature;
  if (!s.hooks.on_warning || !options.distribution.split_wide) return;
  const std::span<const LayerSpec> specs = s.attachment->specs();
  const int ranks = s.comm->size();
  const std::string why = kfac::idle_split(
      kfac::counted_owners(specs, kfac::with_block_width(options, specs), ranks, s.ctx.device()),
      options, ranks);
  if (!why.empty())
    s.hooks.on_warning("optimizer.split_wide is set, and no factor is inverted by several ranks: " +
                       why);
}

/// Joins the BatchNorms of the ranks that a group extends over; collective.
void join_batch_norms(TrainState& s) {
  const int ranks = batch_norm_ranks(s.now->phase.config, s.comm->size());
  if (ranks == 1) return;
  s.model->set_batch_norm_ranks(s.comm->split(s.comm->rank() / ranks, s.comm->rank()));
}

/// Returns the fraction of the most frequent class.
double chance_accuracy(const data::Dataset& set) {
  std::map<std::int32_t, std::int64_t> counts;
  std::int64_t most = 0;
  for (const std::int32_t label : set.labels) most = std::max(most, ++counts[label]);
  return static_cast<double>(most) / static_cast<double>(set.count);
}

}  // namespace

void describe_run(TrainState& s) {
  RunResult& result = s.result;
  result.name = s.config.run.name;
  result.optimizer = name_of(s.config.optimizer.type);
  result.model = s.config.model.name;
  result.data = s.data.front()->train.name;
  result.version = version();
  result.configuration = to_toml(s.config, Comments::none);
  result.seed = s.config.run.seed;
  result.ranks = s.comm->size();
  result.global_batch = phases_of(s.config).front().config.train.global_batch;
  result.device = device_text(s.ctx.device());
  if (loss_of(s.config) == TrainLoss::softmax) result.chance = chance_accuracy(s.data.back()->test);
  result.target = targets_of(s.config);
  result.price_per_hour = s.config.run.price_per_hour;
  compare_configurations(s);
  enter(s, "data");
  run_and_agree(*s.comm, s.position,
                [&] { s.plan = plan_phases(s.config, s.data, s.comm->size()); });
  s.now = &s.plan.front();
  compare_data(s);
}

void build_training(TrainState& s) {
  enter(s, "setup");
  if (s.ctx.device().is_cuda()) reset_peak_memory(s.ctx.device());
  run_and_agree(*s.comm, s.position, [&] { build(s); });
  on_all_ranks(s.position, [&] { join_batch_norms(s); });
  on_all_ranks(s.position, [&] { s.optimizer->prepare(); });
  tell_idle_split(s);
  // The optimizer broadcasts the parameters; whitening filters are buffers.
  if (s.comm->size() == 1 || s.model->buffers().numel() == 0) return;
  s.comm->broadcast(s.model->buffers(), 0, s.ctx.stream(), "model buffers");
  s.ctx.stream().synchronize();
}

}  // namespace dkfac::app
