#include "app/config/use.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/config/keys.h"
#include "app/config/phases.h"
#include "app/shared/config.h"

namespace dkfac::app {

namespace {

void check_shares(std::int64_t samples, int ranks, std::int64_t parts, const char* what) {
  DKFAC_CHECK(samples >= ranks, "[config] ", what, " of ", samples, " samples leaves some of ",
              ranks,
              " ranks without any; use drop_last=true, another train.global_batch, or fewer ranks");
  DKFAC_CHECK(samples >= ranks * parts, "[config] ", what, " of ", samples, " samples on ", ranks,
              " ranks cannot be cut into train.micro_batches = ", parts,
              " parts; lower it, use drop_last=true, or another train.global_batch");
}

// Returns the BatchNorm groups of a global batch; 0: one per rank.
std::int64_t batch_norm_groups(const Config& config) {
  const std::int64_t ghost = config.model.ghost_batch;
  return ghost > 0 ? config.train.global_batch / ghost : config.model.batch_norm_groups;
}

void check_ghost_batch(const Config& config) {
  const std::int64_t ghost = config.model.ghost_batch, batch = config.train.global_batch;
  if (ghost == 0) return;
  DKFAC_CHECK(config.model.batch_norm_groups == 0, "[config] model.ghost_batch = ", ghost,
              " and model.batch_norm_groups = ", config.model.batch_norm_groups,
              " both set the BatchNorm groups of a batch; set one of them");
  DKFAC_CHECK(batch % ghost == 0, "[config] model.ghost_batch = ", ghost,
              " does not divide train.global_batch = ", batch, "; use a divisor of the batch");
}

void check_groups(const Config& config, std::int64_t samples, const char* what) {
  const std::int64_t groups = batch_norm_groups(config), ghost = config.model.ghost_batch;
  DKFAC_CHECK(
      ghost == 0 || samples == config.train.global_batch, "[config] model.ghost_batch = ", ghost,
      " samples are normalised together, but ", what, " of ", samples,
      " samples has as many groups as one of train.global_batch = ", config.train.global_batch,
      "; use train.drop_last = true and a batch that the data fill, or "
      "model.batch_norm_groups");
  DKFAC_CHECK(groups == 0 || samples % groups == 0, "[config] ", groups,
              " BatchNorm groups (model.batch_norm_groups, model.ghost_batch) do not divide ", what,
              " of ", samples, " samples; use a divisor of the batch, or 0 for one group per rank");
}

/// Checks that the ranks of a BatchNorm group have batches of one size.
void check_equal_parts(const Config& config, int ranks, std::int64_t samples, const char* what) {
  const std::int64_t parts = ranks * config.train.micro_batches;
  DKFAC_CHECK(batch_norm_ranks(config, ranks) == 1 || samples % parts == 0,
              "[config] BatchNorm groups (model.batch_norm_groups, model.ghost_batch) extend over "
              "several ranks, which need micro-batches of one size, and ",
              what, " of ", samples, " samples is not a multiple of ", ranks,
              " ranks times train.micro_batches = ", config.train.micro_batches,
              "; use a multiple, or train.drop_last = true");
}

void check_device(const Config& config) {
  const DeviceChoice choice = device_choice(config);
  DKFAC_CHECK(choice.kind == Device::Kind::cuda || !config.run.tf32,
              "[config] run.tf32 = true is for GPUs, and run.device is \"cpu\"; leave it out");
  DKFAC_CHECK(choice.kind == Device::Kind::cuda || config.data.resident != Choice::yes,
              "[config] data.resident = \"yes\" is for GPUs, and run.device is \"cpu\"; leave it "
              "out");
}

void check_curvature(const Config& config) {
  const kfac::CurvatureOptions& c = config.optimizer.curvature();
  DKFAC_CHECK(device_choice(config).kind == Device::Kind::cuda || !c.precondition_tf32,
              "[config] optimizer.precondition_tf32 = true is for GPUs, and run.device is \"cpu\"; "
              "leave it out");
  DKFAC_CHECK(c.statistics.operand != DType::f64 || master_type(config) == DType::f64,
              "[config] optimizer.operand = \"f64\" needs run.precision = \"f64\", and it is \"",
              config.run.precision, "\"; change one of them");
  const bool by_model = c.step_length == kfac::StepLength::quadratic;
  DKFAC_CHECK(
      config.optimizer.interval_schedule == IntervalSchedule::constant ||
          (c.refresh.statistics_interval > 0 && c.refresh.inverse_interval > 0),
      "[config] optimizer.interval_schedule = \"ramp\" needs both ends of its intervals, and "
      "optimizer.statistics_interval = ",
      c.refresh.statistics_interval,
      " and optimizer.inverse_interval = ", c.refresh.inverse_interval,
      ", where 0 is chosen by optimizer.overhead; set both, or leave the schedule out");
  DKFAC_CHECK(
      !by_model || config.optimizer.momentum_schedule == MomentumSchedule::constant,
      "[config] optimizer.step_length = \"quadratic\" finds the rate of the last step itself, "
      "and optimizer.momentum_schedule is \"piecewise\"; leave it out");
  DKFAC_CHECK(
      !by_model || c.statistics.fraction <= 0.75,
      "[config] optimizer.step_length = \"quadratic\" models the loss on the last quarter of "
      "a batch, along whose own statistics its curvature would look too small, and "
      "optimizer.statistics_fraction is ",
      c.statistics.fraction, "; lower it to 0.75 or less");
  if (c.inverse.method == kfac::InverseMethod::ekfac) {
    DKFAC_CHECK(
        c.refresh.staleness == kfac::Staleness::fixed,
        "[config] optimizer.inverse_method = \"ekfac\" refreshes both statistics of a layer in one "
        "step, and optimizer.staleness is \"adaptive\"; use \"fixed\"");
    const int least = std::max(c.refresh.statistics_interval, 1);
    DKFAC_CHECK(
        c.refresh.inverse_interval == 0 || c.refresh.inverse_interval > least,
        "[config] optimizer.inverse_method = \"ekfac\" forgets its scales with each rebuild, and "
        "optimizer.inverse_interval = ",
        c.refresh.inverse_interval, " is not more than optimizer.statistics_interval = ", least,
        "; raise it, or use \"eigen\"");
    // Between both ends of a ramp the intervals keep their order.
    const kfac::CurvatureSettings first = curvature_settings(Phase{.config = config}, 0, 0, 0);
    DKFAC_CHECK(
        !first.inverse_interval || first.inverse_interval > first.statistics_interval,
        "[config] optimizer.inverse_method = \"ekfac\" forgets its scales with each rebuild, and "
        "optimizer.first_inverse_interval = ",
        *first.inverse_interval, " is not more than optimizer.first_statistics_interval = ",
        first.statistics_interval.value_or(1), "; raise it, or use \"eigen\"");
  }
  DKFAC_CHECK(
      config.optimizer.options.kfac.momentum_rule != optim::MomentumRule::paper ||
          full_rate(config) > 0,
      "[config] optimizer.momentum_rule = \"paper\" divides by the highest learning rate, and "
      "[lr] never leaves 0; raise it, or use another rule");
}

void check_evaluation(const Config& config) {
  const RunConfig& run = config.run;
  DKFAC_CHECK(run.eval_every > 0 || !targets_of(config).any() || config.checkpoint.every_epochs > 0,
              "[config] run.eval_every = 0 leaves run.target, run.target_top5 and run.target_loss "
              "to 'dkfac eval "
              "--watch', which needs checkpoints, and checkpoint.every_epochs is 0; set it to 1");
}

void check_names(const Config& config) {
  const std::string& name = config.run.name;
  constexpr std::size_t kLongestName = 200;
  DKFAC_CHECK(name.find('/') == std::string::npos && name != "." && name != ".." &&
                  name.size() <= kLongestName,
              "[config] run.name = \"", shortened(name), "\" names a folder; write at most ",
              kLongestName, " bytes without '/'");
  DKFAC_CHECK(config.model.width == 0 || config.model.name.starts_with("resnet") ||
                  config.model.name.starts_with("vgg"),
              "[config] model.width = ", config.model.width,
              " is for ResNets and VGG, and model.name is \"", config.model.name,
              "\"; leave it out");
  DKFAC_CHECK(has_batch_norm(config) ||
                  (config.model.ghost_batch == 0 && config.model.batch_norm_groups == 0),
              "[config] model.ghost_batch and model.batch_norm_groups are for networks with "
              "BatchNorm, and model.name is \"",
              config.model.name, "\"; leave them out");
}

void validate_whole(const Config& config) {
  check_schedules(config);
  check_names(config);
  check_reconstruction(config);
  check_evaluation(config);
  check_pictures(config);
  check_ghost_batch(config);
  (void)widths_of(config.model.widths);
  if (config.optimizer.has_curvature()) check_curvature(config);
  optim::OptimizerOptions optimizers = optimizer_options(config);
  if (config.optimizer.has_curvature()) optimizers.kfac.curvature.damping = lowest_damping(config);
  optim::visit_optimizer(config.optimizer.type, optimizers,
                         [](const auto&, const auto& options) { options.validate(); });
  regularize_options(config).validate();
  connection(config).options.validate();
  check_device(config);
}

// The groups of a rank's micro-batch are part of the network, so they must be equal in all phases.
void check_equal_groups(const std::vector<Phase>& phases) {
  const Config& first = phases.front().config;
  const auto groups = [](const Config& c) { return batch_norm_groups(c); };
  for (std::size_t i = 1; i < phases.size(); ++i) {
    const Config& now = phases[i].config;
    DKFAC_CHECK(groups(now) * first.train.micro_batches == groups(first) * now.train.micro_batches,
                "[config] phase ", i + 1, " has ", groups(now),
                " BatchNorm groups for train.micro_batches = ", now.train.micro_batches,
                ", and phase 1 has ", groups(first), " for ", first.train.micro_batches,
                "; each micro-batch needs as many in all phases: change train.micro_batches as the "
                "groups do (model.ghost_batch: as train.global_batch does), or use "
                "batch_norm_groups = 0 and ghost_batch = 0 for one group each");
  }
}

// An interval that is chosen in one phase and given in another would end a choice, or begin one.
void check_equally_chosen(const std::vector<Phase>& phases) {
  const auto refresh = [](const Phase& p) { return p.config.optimizer.curvature().refresh; };
  const kfac::RefreshOptions first = refresh(phases.front());
  for (std::size_t i = 1; i < phases.size(); ++i) {
    const kfac::RefreshOptions now = refresh(phases[i]);
    DKFAC_CHECK((now.statistics_interval == 0) == (first.statistics_interval == 0) &&
                    (now.inverse_interval == 0) == (first.inverse_interval == 0),
                "[config] phase ", i + 1,
                " has optimizer.statistics_interval = ", now.statistics_interval,
                " and optimizer.inverse_interval = ", now.inverse_interval, ", and phase 1 has ",
                first.statistics_interval, " and ", first.inverse_interval,
                "; an interval of 0, which optimizer.overhead chooses, is 0 in all phases");
  }
}

}  // namespace

void validate(const Config& config) {
  if (config.phases.empty()) return validate_whole(config);
  const std::int64_t sum = sum_of_epochs(config.phases);
  DKFAC_CHECK(sum == config.run.epochs, "[config] run.epochs = ", config.run.epochs,
              ", and the phases have ", sum, " epochs together; make them equal");
  const std::vector<Phase> phases = phases_of(config);
  for (std::size_t i = 0; i < phases.size(); ++i) {
    try {
      validate_whole(phases[i].config);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(error.what() + phase_text(phases, i));
    }
  }
  check_equal_groups(phases);
  if (config.optimizer.has_curvature()) check_equally_chosen(phases);
}

DType master_type(const Config& config) noexcept {
  return config.run.precision == DType::f64 ? DType::f64 : DType::f32;
}

nn::AttachOptions attach_options(const Config& config) {
  return {.bias_lr = config.optimizer.bias_lr_scale,
          .bias_decay = config.optimizer.bias_decay_scale};
}

Targets targets_of(const Config& config) {
  const auto target = [](double x) { return x > 0 ? std::optional(x) : std::nullopt; };
  return {target(config.run.target), target(config.run.target_top5),
          target(config.run.target_loss)};
}

nn::RegularizeOptions regularize_options(const Config& config) {
  nn::RegularizeOptions options = config.regularize;
  options.label_smoothing = config.train.label_smoothing;
  return options;
}

Connection connection(const Config& config) {
  Connection found;
  found.options.timeout_s = config.run.comm_timeout_s;
  found.options.check = config.run.comm_check;
  found.secret.required = config.run.require_secret;
  return found;
}

int batch_norm_ranks(const Config& config, int ranks) {
  const std::int64_t groups = batch_norm_groups(config), parts = ranks * config.train.micro_batches;
  if (groups % parts == 0) return 1;
  DKFAC_CHECK(
      parts % groups == 0, "[config] ", groups,
      " BatchNorm groups (model.batch_norm_groups, model.ghost_batch) are neither a multiple nor a "
      "divisor of the ",
      ranks, " ranks times train.micro_batches = ", config.train.micro_batches,
      "; use one of these, or 0 for one group per rank and micro-batch");
  const std::int64_t span = parts / groups;
  DKFAC_CHECK(ranks % span == 0, "[config] ", groups,
              " BatchNorm groups (model.batch_norm_groups, model.ghost_batch) extend over ", span,
              " micro-batches of one size each, and the ", ranks,
              " ranks are not a multiple of these; lower train.micro_batches");
  return static_cast<int>(span);
}

nn::ModelOptions model_options(const Config& config, const data::Dataset& data, int ranks) {
  DKFAC_CHECK(config.run.target_top5 == 0 || data.classes > kTop5,
              "[config] run.target_top5 = ", config.run.target_top5, " is for more than ", kTop5,
              " classes, and '", data.name, "' has ", data.classes,
              ", of which every label is among the first five; leave it out");
  const bool shared = batch_norm_ranks(config, ranks) > 1;
  const std::int64_t parts = ranks * config.train.micro_batches;
  const ModelConfig& model = config.model;
  nn::ModelOptions options;
  options.name = model.name;
  options.input = Shape{data.height, data.width, data.channels};
  options.classes = data.classes;
  options.batch_norm_groups =
      shared ? 1 : std::max<std::int64_t>(1, batch_norm_groups(config) / parts);
  options.dtype = master_type(config);
  options.compute = config.run.precision;
  options.seed = config.run.seed;
  options.width = model.width;
  options.init = model.init;
  options.widths = widths_of(model.widths);
  options.activation = model.activation;
  if (model.classifier_stddev > 0) options.classifier_stddev = model.classifier_stddev;
  options.zero_gamma = model.zero_gamma;
  options.norm_epsilon = model.bn_epsilon;
  options.norm_momentum = model.bn_momentum;
  options.norm_scale = model.bn_scale;
  options.norm_scale_stddev = model.bn_scale_stddev;
  options.fused_moments = model.fused_moments;
  options.fused_backward = model.fused_backward;
  options.switches.whitening = model.whitening;
  options.switches.pool_order = model.pool_order;
  options.switches.frozen_bn_scale = model.frozen_bn_scale;
  if (model.celu_alpha >= 0) options.switches.celu_alpha = model.celu_alpha;
  if (model.logit_scale > 0) options.switches.logit_scale = model.logit_scale;
  return options;
}

data::SamplerOptions sampler_options(const Config& config, const data::Dataset& train, int ranks) {
  const std::int64_t batch = config.train.global_batch, tail = train.count % batch;
  DKFAC_CHECK(batch <= train.count || !config.train.drop_last,
              "[config] train.global_batch = ", batch, " is more than the ", train.count,
              " training samples; lower it or set train.drop_last=false");
  if (batch <= train.count) {
    check_shares(batch, ranks, config.train.micro_batches, "a global batch");
    check_groups(config, batch, "a global batch");
    check_equal_parts(config, ranks, batch, "a global batch");
  }
  if (!config.train.drop_last && tail > 0) {
    check_shares(tail, ranks, config.train.micro_batches, "the last batch");
    check_groups(config, tail, "the last batch");
    check_equal_parts(config, ranks, tail, "the last batch");
  }
  return {.count = train.count,
          .global_batch = batch,
          .seed = config.run.seed,
          .shuffle = config.data.shuffle,
          .drop_last = config.train.drop_last};
}

DeviceChoice device_choice(const Config& config) {
  const std::string& text = config.run.device;
  if (text == "cpu") return {};
  if (text == "cuda") return {Device::Kind::cuda, std::nullopt};
  constexpr std::string_view kNamed = "cuda:";
  int index = -1;
  if (text.starts_with(kNamed)) {
    const char *begin = text.data() + kNamed.size(), *end = text.data() + text.size();
    const auto [at, error] = std::from_chars(begin, end, index);
    if (error != std::errc() || at != end) index = -1;
  }
  DKFAC_CHECK(index >= 0, "[config] run.device = \"", shortened(text),
              "\" is no device; write \"cpu\", \"cuda\", or the number of a GPU, as in \"cuda:0\"");
  return {Device::Kind::cuda, index};
}

ContextOptions context_options(const Config& config) {
  return {.threads = config.run.threads, .tf32 = config.run.tf32, .graphs = config.run.graphs};
}

optim::OptimizerOptions optimizer_options(const Config& config) {
  optim::OptimizerOptions options = config.optimizer.options;
  kfac::CurvatureOptions& curvature = options.kfac.curvature;
  optim::for_each_optimizer(options, [](const auto&, auto& one) {
    if constexpr (requires { one.loss_reduction; }) one.loss_reduction = LossReduction::global_mean;
  });
  curvature.loss_reduction = LossReduction::global_mean;
  curvature.dtype = master_type(config);
  curvature.statistics.micro_batches = static_cast<int>(config.train.micro_batches);
  if (draws_from_part(config)) curvature.statistics.fraction = 1;  // The passes take the part.
  // The intervals are those at the end of a ramp: the stored forms of inverses and their owners are
  // chosen once, for most of the run. The first step sets the initial intervals before it records
  // anything.
  curvature.damping = curvature_settings(Phase{.config = config}, 0, 0, 0).damping.value_or(0);
  optim::KfacOptions& kfac = options.kfac;
  if (kfac.update == optim::DirectionUpdate::adamw)
    kfac.beta1 = std::exchange(kfac.momentum, optim::KfacOptions{}.momentum);
  else
    kfac.initial_lr = full_rate(config);
  return options;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config,
                                                 std::shared_ptr<comm::Communicator> comm,
                                                 Device device) {
  std::unique_ptr<optim::Optimizer> made;
  const optim::OptimizerOptions all = optimizer_options(config);
  optim::visit_optimizer(config.optimizer.type, all, [&](const auto& entry, const auto& options) {
    made = entry.make(std::move(comm), options, device, context_options(config));
  });
  return made;
}

}  // namespace dkfac::app
