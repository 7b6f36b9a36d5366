#include <algorithm>

#include <fmt/core.h>

#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"
#include "dkfac/core/version.h"
#include "dkfac/nn/layers.h"
#include "dkfac/nn/whitening.h"

#include "app/agreement.h"
#include "app/training/all_ranks.h"
#include "app/training/state.h"

namespace dkfac::app {

namespace {

void compare_ranks(TrainState& s) {
  enter(s, "config");
  on_all_ranks(s.position,
               [&] { comm::require_equal(*s.comm, s.result.configuration, "configuration"); });
  enter(s, "data");
  on_all_ranks(s.position, [&] {
    comm::require_equal(
        *s.comm, fmt::format("{:x}-{:x}", fingerprint(s.data.train), fingerprint(s.data.test)),
        "data set (its fingerprint)");
  });
}

void set_whitening(TrainState& s, const nn::Normalization& normalization) {
  if (!nn::has_whitening(*s.model)) return;
  // The filters are the same bits wherever the run is.
  Context host(Device::cpu(), {.threads = s.config.run.threads});
  nn::set_whitening(s.ctx, *s.model, nn::whitening_filters(host, s.data.train, normalization));
}

/// A BatchNorm needs two values per channel and group of every micro-batch. Where it sees one
/// pixel, a rank with one sample per group would fail when that batch comes, alone and after a long
/// time.
void check_batch_norms(const nn::Model& model, const nn::SamplerOptions& sampler, int ranks,
                       std::int64_t micro_batches) {
  const std::int64_t batches = nn::batches_per_epoch(sampler);
  for (const std::int64_t batch : {std::int64_t{0}, batches - 1}) {
    // No share is smaller than the last rank's, and no part of it than the first.
    const nn::BatchShare share = nn::batch_share(sampler, batch, ranks - 1, ranks);
    model.trace([&](const nn::Layer& layer, const Shape& sample) {
      const auto* norm = dynamic_cast<const nn::BatchNorm2d*>(&layer);
      if (norm == nullptr) return;
      const std::int64_t groups = norm->options().groups;
      const std::int64_t values =
          share.count / micro_batches / groups * (sample.numel() / norm->channels());
      DKFAC_CHECK(values >= 2, "[config] a batch of ", share.global_batch, " samples on ", ranks,
                  " ranks with ", groups, " BatchNorm groups in each of ", micro_batches,
                  " micro-batches leaves '", layer.name(), "' ", values,
                  " values per channel and group, and it needs 2; use drop_last=true, ",
                  "another train.global_batch, or fewer groups, ranks or train.micro_batches");
    });
  }
}

/// Batches are the same wherever they are made; the set itself may take a share of the memory that
/// the network would not miss.
nn::DataPlace data_place(const TrainState& s) {
  const Device device = s.ctx.device();
  const Choice choice = s.config.data.resident;
  if (!device.is_cuda() || choice == Choice::no) return nn::DataPlace::streamed;
  const bool photos = s.data.train.photos != nullptr || s.data.test.photos != nullptr;
  DKFAC_CHECK(!photos || choice != Choice::yes,
              "[config] data.resident = \"yes\", and photographs are decoded by the host; use "
              "\"auto\" or \"no\"");
  if (photos) return nn::DataPlace::streamed;
  if (choice == Choice::yes) return nn::DataPlace::resident;
  constexpr double kShare = 0.2;
  const double bytes = static_cast<double>(nn::resident_bytes(s.data.train, s.config.augment) +
                                           nn::resident_bytes(s.data.test, {}));
  const auto all = static_cast<double>(
      backend_info().cuda_info.devices.at(static_cast<std::size_t>(device.index)).bytes);
  return bytes * s.sharers <= kShare * all ? nn::DataPlace::resident : nn::DataPlace::streamed;
}

/// Of images on their way to the network. In 16 bits it would round them first of all; what mixes
/// them does so before.
DType image_type(const TrainState& s) {
  const bool device = s.ctx.device().is_cuda();
  return device && !regularize_options(s.config).any() ? s.config.run.precision
                                                       : master_type(s.config);
}

/// A network that takes one shape alone would fail after the first epoch.
void check_rectangular(TrainState& s) {
  if (!s.config.data.rectangular || s.data.test.photos == nullptr) return;
  const Shape input = s.model->input();
  bool takes = true;
  try {
    s.model->set_input({input[0] + 8, input[1] + 16, input[2]});
  } catch (const InvalidArgument&) {
    takes = false;
  }
  s.model->set_input(input);
  DKFAC_CHECK(takes, "[config] data.rectangular = true evaluates in batches of other shapes than ",
              input, ", which model.name = \"", s.config.model.name,
              "\" does not take; leave it out, or choose a network with global pooling");
}

void make_loaders(TrainState& s, const nn::Normalization& normalization) {
  const int rank = s.comm->rank(), size = s.comm->size();
  const nn::SamplerOptions sampler = sampler_options(s.config, s.data.train, size);
  check_batch_norms(*s.model, sampler, size, s.config.train.micro_batches);
  s.steps_per_epoch = nn::batches_per_epoch(sampler);
  nn::DeviceDataOptions options{.sampler = sampler,
                                .augment = s.config.augment,
                                .rank = rank,
                                .size = size,
                                .dtype = image_type(s),
                                .place = data_place(s)};
  s.loader.emplace(s.ctx, s.data.train, normalization, options);
  options.sampler = test_order(s.config.run.eval_batch, s.data.test.count);
  options.augment = {};
  options.dtype = master_type(s.config);
  s.test_loader.emplace(s.ctx, s.data.test, normalization, options);
}

Config with_failure_folder(const TrainState& s) {
  Config config = s.config;
  std::string& folder = config.optimizer.curvature.failure_folder;
  if (folder.empty()) folder = s.checkpoints.failures.string();
  return config;
}

/// Of all ranks' devices, taken to be alike, and shared by as many ranks as this one's.
std::optional<double> all_peak_flops(const TrainState& s) {
  const auto one = peak_flops(s.ctx.device(), s.config.run.precision, s.config.run.tf32);
  return one ? std::optional(*one * s.comm->size() / s.sharers) : std::nullopt;
}

/// "cuda:0, NVIDIA H100 80GB HBM3"
std::string device_text(Device device) {
  if (!device.is_cuda()) return "cpu";
  return fmt::format(
      "cuda:{}, {}", device.index,
      backend_info().cuda_info.devices.at(static_cast<std::size_t>(device.index)).name);
}

nn::GraphedPasses::Options graph_options(const TrainState& s) {
  nn::GraphedPasses::Options options;
  // One for each micro-batch of either of two buffers, of full batches and of an epoch's last one.
  options.most = std::max<std::size_t>(options.most,
                                       4 * static_cast<std::size_t>(s.config.train.micro_batches));
  // Of several ranks the gradients of a bucket leave while the backward pass goes on.
  const OptimizerConfig& optimizer = s.config.optimizer;
  if (s.comm->size() > 1 && optimizer.overlap)
    options.part_bytes = static_cast<std::size_t>(optimizer.bucket_bytes);
  return options;
}

void build(TrainState& s) {
  s.model = nn::make_model(s.ctx, model_options(s.config, s.data.train, s.comm->size()));
  s.result.parameters = s.model->parameter_count();
  s.peak_flops = all_peak_flops(s);
  const nn::Normalization normalization = nn::normalization_of(s.data.train);
  set_whitening(s, normalization);
  check_rectangular(s);
  make_loaders(s, normalization);
  s.optimizer = make_optimizer(with_failure_folder(s), s.comm, s.ctx.device());
  nn::AttachOptions attach = attach_options(s.config);
  attach.max_samples = s.config.train.global_batch;
  attach.stream = s.ctx.stream();
  s.attachment.emplace(*s.model, *s.optimizer, attach);
  s.layers = s.attachment->names();
  for (const kfac::LayerSpec& spec : s.attachment->specs())
    s.statistic_sizes.push_back(statistic_sizes(spec, s.config.optimizer.curvature.batch_norm));
  if (s.ctx.device().is_cuda()) s.phases.emplace(s.ctx.device());
  s.timed.emplace(*s.attachment, s.phases ? &*s.phases : nullptr, s.ctx.stream());
  s.model->set_observer(&*s.timed);
  if (s.ctx.device().is_cuda() && s.config.run.graphs)
    s.graphed.emplace(*s.model, &*s.timed, graph_options(s));
  s.sums.emplace(s.ctx);
  s.drawn_sums.emplace(s.ctx);
  s.counters.loss_scale = first_loss_scale(loss_scale_options(s.config));
  if (const TrainConfig& train = s.config.train; train.ema_decay > 0) {
    s.ema.emplace(s.ctx, *s.model,
                  nn::EmaOptions{.decay = train.ema_decay, .interval = train.ema_interval});
  }
}

}  // namespace

void describe_run(TrainState& s) {
  RunResult& result = s.result;
  result.name = s.config.run.name;
  result.optimizer = name_of(s.config.optimizer.type);
  result.model = s.config.model.name;
  result.data = s.data.train.name;
  result.version = version();
  result.configuration = to_toml(s.config, Comments::none);
  result.seed = static_cast<std::uint64_t>(s.config.run.seed);
  result.ranks = s.comm->size();
  result.global_batch = s.config.train.global_batch;
  result.device = device_text(s.ctx.device());
  if (s.config.run.target > 0) result.target_accuracy = s.config.run.target;
  compare_ranks(s);
}

void build_training(TrainState& s) {
  enter(s, "setup");
  if (s.ctx.device().is_cuda()) reset_peak_memory(s.ctx.device());
  together(*s.comm, s.position, [&] { build(s); });
  on_all_ranks(s.position, [&] { s.optimizer->prepare(); });
  // The optimizer gives all ranks the same parameters; whitening filters are buffers.
  if (s.comm->size() == 1 || s.model->buffers().numel() == 0) return;
  s.comm->broadcast(s.model->buffers(), 0, s.ctx.stream(), "model buffers");
  s.ctx.stream().synchronize();
}

}  // namespace dkfac::app
