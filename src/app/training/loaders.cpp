#include <algorithm>

#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"
#include "dkfac/nn/layers.h"

#include "app/training/state.h"

namespace dkfac::app {

namespace {

/// Chooses the placement of the data set, which does not affect the batches. "auto" makes it
/// resident if it takes only a small fraction of device memory.
data::DataPlacement data_placement(const TrainState& s) {
  const Device device = s.ctx.device();
  const Choice choice = s.config.data.resident;
  if (!device.is_cuda() || choice == Choice::no) return data::DataPlacement::streamed;
  const bool photos = s.now->data->train.photos != nullptr || s.now->data->test.photos != nullptr;
  DKFAC_CHECK(!photos || choice != Choice::yes,
              "[config] data.resident = \"yes\", and photographs are decoded by the host; use "
              "\"auto\" or \"no\"");
  if (photos) return data::DataPlacement::streamed;
  if (choice == Choice::yes) return data::DataPlacement::resident;
  constexpr double kLargestFraction = 0.2;
  const double bytes =
      static_cast<double>(data::resident_bytes(s.now->data->train, s.now->phase.config.augment) +
                          data::resident_bytes(s.now->data->test, {}));
  const auto all = static_cast<double>(
      backend_info().cuda_info.devices.at(static_cast<std::size_t>(device.index)).bytes);
  return bytes * s.ranks_on_device <= kLargestFraction * all ? data::DataPlacement::resident
                                                             : data::DataPlacement::streamed;
}

/// Returns the dtype of images from the loader. A network in 16 bits would round them first anyway;
/// regularization that mixes images works in the master type, and so do images that are targets.
DType image_type(const TrainState& s) {
  const bool device = s.ctx.device().is_cuda();
  const bool rounded =
      !regularize_options(s.now->phase.config).any() && loss_of(s.config) == TrainLoss::softmax;
  return device && rounded ? s.config.run.precision : master_type(s.config);
}

}  // namespace

/// A BatchNorm needs two values per channel and group of every micro-batch. With one pixel per
/// sample, a rank with one sample per group would fail only when that batch arrives, possibly late
/// and on a single rank.
void check_batch_norms(const nn::Model& model, const PhasePlan& plan, int ranks) {
  const Config& config = plan.phase.config;
  const data::SamplerOptions sampler = sampler_options(config, plan.data->train, ranks);
  const std::int64_t micro_batches = config.train.micro_batches;
  const int shared = batch_norm_ranks(config, ranks);
  for (const std::int64_t batch : {std::int64_t{0}, plan.steps_per_epoch - 1}) {
    // The last rank's share is the smallest one, and its first micro-batch the smallest of these.
    const data::BatchShare share = data::batch_share(sampler, batch, ranks - 1, ranks);
    model.trace([&](const nn::Layer& layer, const Shape& sample) {
      const auto* norm = dynamic_cast<const nn::BatchNorm2d*>(&layer);
      if (norm == nullptr) return;
      const std::int64_t groups = norm->options().groups;
      const std::int64_t values =
          share.count / micro_batches * shared / groups * (sample.numel() / norm->channels());
      DKFAC_CHECK(values >= 2, "[config] a batch of ", share.global_batch, " samples on ", ranks,
                  " ranks with ", groups, " BatchNorm groups in each of ", micro_batches,
                  " micro-batches leaves '", layer.name(), "' ", values,
                  " values per channel and group, and it needs 2; use drop_last=true, ",
                  "another train.global_batch, or fewer groups, ranks or train.micro_batches");
    });
  }
}

void check_rectangular(nn::Model& model, const Config& config, const data::Dataset& test) {
  if (!config.data.rectangular || test.photos == nullptr) return;
  const Shape input = model.input();
  std::string why;
  try {
    model.set_input({input[0] + 8, input[1] + 16, input[2]});
  } catch (const InvalidArgument& error) {
    why = error.what();
  }
  model.set_input(input);
  DKFAC_CHECK(why.empty(),
              "[config] data.rectangular = true evaluates in batches of other shapes than ", input,
              ", which model.name = \"", config.model.name,
              "\" does not take; leave it out, or choose \"resnet50\"\n", why);
}

void make_loaders(TrainState& s) {
  const Config& config = s.now->phase.config;
  const data::DataSplits& data = *s.now->data;
  const int rank = s.comm->rank(), size = s.comm->size();
  const data::Normalization normalization = data::normalization_of(data.train);
  data::DeviceDataOptions options{.sampler = sampler_options(config, data.train, size),
                                  .augment = config.augment,
                                  .rank = rank,
                                  .size = size,
                                  .dtype = image_type(s),
                                  .place = data_placement(s)};
  s.loader.reset();  // Frees its memory for the next loader.
  s.test_loader.reset();
  s.loader.emplace(s.ctx, data.train, normalization, options);
  options.sampler = test_order(config.run.eval_batch, data.test.count);
  options.augment = {};
  options.dtype = master_type(config);
  s.test_loader.emplace(s.ctx, data.test, normalization, options);
}

nn::GraphedPasses::Options graph_options(const TrainState& s) {
  nn::GraphedPasses::Options options;
  // One graph for each micro-batch in each of two buffers, for full batches and an epoch's last
  // one, with statistics and without.
  options.most = std::max<std::size_t>(
      options.most, 8 * static_cast<std::size_t>(s.now->phase.config.train.micro_batches));
  // With several ranks, the gradients of a bucket are reduced during the rest of the backward pass.
  const optim::SgdOptions& shared =
      s.config.optimizer.options.sgd;  // Equal for all optimizer types.
  if (s.comm->size() > 1 && shared.communication.overlap)
    options.part_bytes = static_cast<std::size_t>(shared.communication.bucket_bytes);
  return options;
}

}  // namespace dkfac::app
