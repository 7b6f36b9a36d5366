#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/secret.h"
#include "dkfac/core/device.h"
#include "dkfac/data/augment.h"
#include "dkfac/data/dataset.h"
#include "dkfac/data/loader.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/model.h"
#include "dkfac/nn/regularize.h"
#include "dkfac/optim/optimizer.h"

#include "app/shared/result.h"
#include "optim/shared/registry.h"

namespace dkfac::app {

/// Top-5 accuracies are recorded for more classes than kTop5Classes, as five of ten say little;
/// with run.target_top5 for more than kTop5, of which it is not always 1.
inline constexpr std::int64_t kTop5 = 5, kTop5Classes = 10;

/// Use of a feature that is not available in every run.
enum class Choice : std::uint8_t { automatic, yes, no };

/// Views of a test image whose logits are averaged (test-time augmentation).
enum class Tta : std::uint8_t {
  none,        ///< The image alone.
  flip,        ///< And its horizontal flip.
  five_crops,  ///< Centre and corners of the resized photograph.
  ten_crops    ///< These and their flips.
};
[[nodiscard]] constexpr bool takes_flips(Tta tta) {
  return tta == Tta::flip || tta == Tta::ten_crops;
}
[[nodiscard]] constexpr bool takes_crops(Tta tta) {
  return tta == Tta::five_crops || tta == Tta::ten_crops;
}

struct RunConfig {
  std::string name;
  std::string device = "cpu";  ///< See DeviceChoice.
  bool tf32 = false;
  bool graphs = true;  ///< CUDA graphs, where they are available.
  std::uint64_t seed = 1;
  std::int64_t epochs = 10;
  DType precision = DType::f32;
  int threads = 0;
  std::int64_t eval_batch = 1000, eval_every = 1;
  double target = 0, target_top5 = 0, target_loss = 0;  ///< 0: none.
  double price_per_hour = 0;                            ///< 0: unknown.
  Tta tta = Tta::none;
  std::int64_t log_interval = 10;
  bool trace = false;
  double comm_timeout_s = 120;
  comm::Check comm_check = comm::Check::hash;
  std::int64_t compare_weights = 100;  ///< Steps; 0: never.
  bool require_secret = false;         ///< Of ranks that connect over a network.
  int hierarchical = 0;
};

/// Mean and standard deviation for the normalisation of photographs.
enum class PhotoColours : std::uint8_t { imagenet, data };

struct DataConfig {
  std::string name = "fashion-mnist-small";
  std::string path;
  std::int64_t hold_out = 0;
  bool shuffle = true;
  Choice resident = Choice::automatic;
  std::int64_t synthetic_train = 2048, synthetic_test = 512;
  std::int64_t synthetic_size = 28, synthetic_channels = 1, synthetic_classes = 10;
  std::uint64_t synthetic_seed = 1;
  std::int64_t image_size = 224;
  data::PhotoCrop crop = data::PhotoCrop::random_resized;
  std::int64_t crop_resized = 256;
  double crop_min_area = 0.08, crop_max_area = 1, crop_max_aspect = 4.0 / 3;
  std::int64_t test_resized = 0;
  data::PhotoCrop test_crop = data::PhotoCrop::centre;
  bool rectangular = false;
  PhotoColours normalisation = PhotoColours::imagenet;
  std::string mean_image;  ///< Empty: none.
  bool scaled_decoding = false;
  int workers = 0;
  data::BadPhoto bad_sample = data::BadPhoto::skip;
  double bad_limit = 1e-3;
  bool index = true;
  bool operator==(const DataConfig&) const = default;
};

struct ModelConfig {
  std::string name = "lenet-bn";
  std::string weights;  ///< Empty: drawn.
  std::int64_t batch_norm_groups = 0, ghost_batch = 0;
  std::int64_t width = 0;
  std::optional<nn::WeightInit> init;
  std::string widths;  ///< "400-200-100-30"; empty: the network's own.
  std::optional<nn::DenseActivation> activation;
  double classifier_stddev = 0;
  bool zero_gamma = false;
  double bn_epsilon = 1e-5, bn_momentum = 0.1, bn_scale = 1, bn_scale_stddev = 0;
  nn::FusionUse fused_moments = nn::FusionUse::measured;
  nn::FusionUse fused_backward = nn::FusionUse::measured;
  std::optional<bool> whitening, frozen_bn_scale;
  std::optional<nn::PoolOrder> pool_order;
  double celu_alpha = -1, logit_scale = 0;
};

/// What a network is trained to. The last two are of an autoencoder, whose targets are its inputs;
/// the loss that is reported of `sigmoid` is without the entropy of the targets.
enum class TrainLoss : std::uint8_t { softmax, sigmoid, squared };

enum class LossScaling : std::uint8_t { none, dynamic, fixed };

struct TrainConfig {
  std::int64_t global_batch = 256;
  TrainLoss reconstruction = TrainLoss::sigmoid;  ///< Of an autoencoder: see loss_of().
  double label_smoothing = 0;
  bool drop_last = true;
  std::int64_t max_skipped_steps = 20;
  double ema_decay = 0;
  std::int64_t ema_interval = 5;
  std::int64_t micro_batches = 1;
  LossScaling loss_scale = LossScaling::none;
  double initial_loss_scale = 65536;
};

/// Gradients that the curvature is estimated from: those of the training loss, or those for labels
/// sampled from the model's predictive distribution, which requires a second backward pass.
enum class Fisher : std::uint8_t { empirical, monte_carlo };
enum class DampingSchedule : std::uint8_t { constant, warmup, piecewise };
enum class IntervalSchedule : std::uint8_t { constant, ramp };
enum class MomentumSchedule : std::uint8_t { constant, piecewise };

/// Section [optimizer]. A file may not give keys that belong to other types than `type`. Options
/// common to several optimizers have one key and one default, so that compared runs differ only in
/// what their files state.
struct OptimizerConfig {
  optim::OptimizerType type = optim::OptimizerType::kfac;
  optim::OptimizerOptions options = {
      .lars = {.weight_decay = 0},
      .adamw = {.weight_decay = 0},
      .muon = {.momentum = 0.9, .nesterov = false, .weight_decay = 0, .beta2 = 0.999}};
  MomentumSchedule momentum_schedule = MomentumSchedule::constant;
  std::vector<std::pair<double, double>> momentum_knots;  ///< (epoch, momentum)
  double bias_lr_scale = 1, bias_decay_scale = 0;
  Fisher fisher = Fisher::empirical;
  DampingSchedule damping_schedule = DampingSchedule::constant;
  double damping_initial = 1;
  std::int64_t damping_warmup_steps = 100;
  std::vector<std::pair<double, double>> damping_knots;  ///< (epoch, damping)
  IntervalSchedule interval_schedule = IntervalSchedule::constant;
  int first_statistics_interval = 1, first_inverse_interval = 1;
  std::int64_t interval_ramp_steps = 100;

  [[nodiscard]] bool has_curvature() const { return type == optim::OptimizerType::kfac; }
  [[nodiscard]] double momentum() const { return options.sgd.momentum; }  ///< Of any type.
  [[nodiscard]] const kfac::CurvatureOptions& curvature() const { return options.kfac.curvature; }
};

struct CheckpointConfig {
  std::int64_t every_epochs = 1, every_steps = 0;  ///< 0: never.
  std::int64_t keep = 2;
};

enum class LrSchedule : std::uint8_t { polynomial, piecewise, constant, step, cosine };

/// How rates follow the batch: in proportion to it, or to its square root.
enum class BatchScaling : std::uint8_t { linear, sqrt };

struct LrConfig {
  LrSchedule schedule = LrSchedule::polynomial;
  double lr = 0.1;
  double start = 0, end = 0;  ///< Epochs; end 0: the epochs of the run.
  double power = 1;
  double last = 0;                               ///< lr.final
  std::vector<std::pair<double, double>> knots;  ///< (epoch, lr)
  double warmup_epochs = 0, warmup_first = 0;
  std::int64_t base_batch = 0;
  BatchScaling batch_scaling = BatchScaling::linear;
};

/// One [[phase]] table of a file; phases.h defines its meaning.
struct PhaseChanges {
  std::int64_t epochs = 1;
  /// Path and value as TOML, in the order of the key table.
  std::vector<std::pair<std::string, std::string>> changes;
};

/// Complete configuration of a run. Meaning, type, default and range of every key are in one table,
/// which config_listing() prints.
struct Config {
  RunConfig run;
  DataConfig data;
  data::AugmentOptions augment;
  nn::RegularizeOptions regularize;  ///< Keys of [augment]; see regularize_options().
  ModelConfig model;
  TrainConfig train;
  OptimizerConfig optimizer;
  LrConfig lr;
  CheckpointConfig checkpoint;
  std::vector<PhaseChanges>
      phases;  ///< Empty: one without changes. Their epochs sum to run.epochs.
  /// Remarks for the user, one line each, about settings that were dropped while reading.
  std::vector<std::string> remarks;
};

/// Reads a TOML file and applies `overrides` ("section.key=value" and "phase.N.section.key=value";
/// later ones win). The file's stem is the default of run.name. Keys of the
/// file that do not apply to what an override chooses (other data, another schedule) are dropped
/// and reported in Config::remarks; those of another model.name or optimizer.type are refused.
///
/// Throws MissingInput when the file does not exist, and InvalidArgument otherwise, with file and
/// line, key, value, the allowed range, and for an unknown key the nearest known one.
[[nodiscard]] Config load_config(const std::filesystem::path& file,
                                 std::span<const std::string> overrides = {});
/// Parses a configuration from text; `source` names it in messages.
[[nodiscard]] Config parse_config(std::string_view text, std::span<const std::string> overrides,
                                  std::string_view source);
/// Checks values against each other. load_config and parse_config call it.
void validate(const Config& config);

/// Whether to_toml() writes the one-line explanation of each key.
enum class Comments : std::uint8_t { none, help };
/// Returns every key that applies as TOML, which parse_config reads back into the same values.
[[nodiscard]] std::string to_toml(const Config& config, Comments comments = Comments::help);
/// Describes every key: type, default, allowed values, explanation, and where it applies.
[[nodiscard]] std::string config_listing();

// --- options for the library ------------------------------------------------------------------

/// Type of weights, gradients and statistics: f32 where the run computes in 16 bits.
[[nodiscard]] DType master_type(const Config& config) noexcept;
/// Parsed run.device: "cpu", "cuda" (each rank of a machine uses the next device), or "cuda:1".
struct DeviceChoice {
  Device::Kind kind = Device::Kind::cpu;
  std::optional<int> index;  ///< Device index, if run.device names one.
};
/// Parses run.device. Throws InvalidArgument for any other text.
[[nodiscard]] DeviceChoice device_choice(const Config& config);
[[nodiscard]] nn::AttachOptions attach_options(const Config& config);
/// Returns run.target and run.target_top5.
[[nodiscard]] Targets targets_of(const Config& config);
/// Returns the loss that the network of this configuration is trained to.
[[nodiscard]] TrainLoss loss_of(const Config& config);
/// Returns whether a Monte-Carlo Fisher is of the first samples of a micro-batch alone, which pass
/// through the network by themselves: not with BatchNorm, whose statistics are of the batch.
[[nodiscard]] bool draws_from_part(const Config& config);
/// Returns the number of samples of a micro-batch of `count` from which these statistics come.
[[nodiscard]] std::int64_t drawn_part(const Config& config, std::int64_t count);
/// Returns the options of mixup, random erasing and label smoothing.
[[nodiscard]] nn::RegularizeOptions regularize_options(const Config& config);
/// How the ranks of a job are connected.
struct Connection {
  comm::Options options = {};
  comm::Secret secret = {};
};
[[nodiscard]] Connection connection(const Config& config);
[[nodiscard]] data::DataSource data_source(const Config& config);
/// Returns the number of consecutive ranks over which a BatchNorm group extends; 1: each group is
/// on one rank. Throws InvalidArgument when the groups cannot be distributed over `ranks`.
[[nodiscard]] int batch_norm_ranks(const Config& config, int ranks);
/// Returns the model options for data of this shape. Throws as batch_norm_ranks().
[[nodiscard]] nn::ModelOptions model_options(const Config& config, const data::Dataset& data,
                                             int ranks);
/// Returns the sampling options. Throws InvalidArgument when some batch would leave a rank without
/// samples, or without equal BatchNorm groups.
[[nodiscard]] data::SamplerOptions sampler_options(const Config& config, const data::Dataset& train,
                                                   int ranks);
[[nodiscard]] ContextOptions context_options(const Config& config);
/// Returns the optimizer options; only those of config.optimizer.type are used.
[[nodiscard]] optim::OptimizerOptions optimizer_options(const Config& config);
[[nodiscard]] std::unique_ptr<optim::Optimizer> make_optimizer(
    const Config& config, std::shared_ptr<comm::Communicator> comm, Device device = Device::cpu());
/// Returns whether damping or intervals change during the run.
[[nodiscard]] bool has_curvature_schedule(const Config& config);

}  // namespace dkfac::app
