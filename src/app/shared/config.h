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
#include "dkfac/core/device.h"
#include "dkfac/data/augment.h"
#include "dkfac/data/dataset.h"
#include "dkfac/data/loader.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/model.h"
#include "dkfac/nn/regularize.h"
#include "dkfac/optim/optimizer.h"

#include "optim/shared/registry.h"

namespace dkfac::app {

/// Whether something is done that some runs can do and others cannot.
enum class Choice : std::uint8_t { automatic, yes, no };

struct RunConfig {
  std::string name;
  std::string device = "cpu";  ///< See DeviceChoice.
  bool tf32 = false;
  bool graphs = true;  ///< Where they can be had.
  std::uint64_t seed = 1;
  std::int64_t epochs = 10;
  DType precision = DType::f32;
  int threads = 0;
  std::int64_t eval_batch = 1000;
  double target = 0;
  bool tta = false;
  std::int64_t log_interval = 10;
  bool trace = false;
  double comm_timeout_s = 120;
  comm::Check comm_check = comm::Check::hash;
  int hierarchical = 0;
};

/// Which mean and deviation photographs are normalised with.
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
  bool rectangular = false;
  PhotoColours normalisation = PhotoColours::imagenet;
  bool scaled_decoding = false;
  int workers = 0;
  data::BadPhoto bad_sample = data::BadPhoto::skip;
  double bad_limit = 1e-3;
  bool index = true;
  bool operator==(const DataConfig&) const = default;
};

struct ModelConfig {
  std::string name = "lenet-bn";
  std::int64_t batch_norm_groups = 0, ghost_batch = 0;
  std::int64_t width = 0;
  std::optional<nn::WeightInit> init;
  double classifier_stddev = 0;
  bool zero_gamma = false;
  bool fused_moments = false, fused_backward = false;
  std::optional<bool> whitening, pool_before_activation, frozen_bn_scale;
  double celu_alpha = -1, logit_scale = 0;
};

enum class LossScaling : std::uint8_t { none, dynamic, fixed };

struct TrainConfig {
  std::int64_t global_batch = 256;
  double label_smoothing = 0;
  bool drop_last = true;
  std::int64_t max_skipped_steps = 20;
  double ema_decay = 0;
  std::int64_t ema_interval = 5;
  std::int64_t micro_batches = 1;
  LossScaling loss_scale = LossScaling::none;
  double initial_loss_scale = 65536;
};

/// Whose gradients the curvature is made of: those of the training loss, or of labels that are
/// drawn from the model's own distribution, which takes a second backward pass.
enum class Fisher : std::uint8_t { empirical, monte_carlo };
enum class DampingSchedule : std::uint8_t { constant, warmup, piecewise };
enum class IntervalSchedule : std::uint8_t { constant, ramp };
enum class MomentumSchedule : std::uint8_t { constant, piecewise };

/// Keys that belong to other types than `type` are refused in a file. Optimizers share the keys of
/// the options that they share, and their defaults here, so that a comparison differs only in what
/// its files say.
struct OptimizerConfig {
  optim::OptimizerType type = optim::OptimizerType::kfac;
  optim::OptimizerOptions options = {.lars = {.weight_decay = 0}, .adamw = {.weight_decay = 0}};
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

struct LrConfig {
  LrSchedule schedule = LrSchedule::polynomial;
  double lr = 0.1;
  double start = 0, end = 0;  ///< Epochs; end 0: the epochs of the run.
  double power = 1;
  double last = 0;                               ///< lr.final
  std::vector<std::pair<double, double>> knots;  ///< (epoch, lr)
  double warmup_epochs = 0, warmup_first = 0;
  std::int64_t base_batch = 0;
};

/// What one [[phase]] of a file says; phases.h has what it means.
struct PhaseChanges {
  std::int64_t epochs = 1;
  /// Path and value as TOML, in the order of the table.
  std::vector<std::pair<std::string, std::string>> changes;
};

/// Everything that decides a run. Meaning, type, default and range of every key stand in one table,
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
  std::vector<PhaseChanges> phases;  ///< Empty: one, without changes. run.epochs is their sum.
  /// What reading it has left out, for whoever started the program: a line each.
  std::vector<std::string> remarks;
};

/// Reads a TOML file and applies `overrides` ("section.key=value" and "phase.N.section.key=value",
/// later ones win). The file's stem
/// is the name of a run that has none. Throws MissingInput when there is no such file, else
/// InvalidArgument with file and line, key, value, the allowed range, and for an unknown key the
/// nearest known one. An override of data.name takes from the file what the new set does not have,
/// and says so in Config::remarks.
[[nodiscard]] Config load_config(const std::filesystem::path& file,
                                 std::span<const std::string> overrides = {});
/// The same from text; `source` is what messages call it.
[[nodiscard]] Config parse_config(std::string_view text, std::span<const std::string> overrides,
                                  std::string_view source);
/// Checks values against each other. load_config and parse_config have done it.
void validate(const Config& config);

/// Whether each value comes with its one-line explanation.
enum class Comments : std::uint8_t { none, help };
/// Every key that applies, as TOML that parse_config reads back into the same values.
[[nodiscard]] std::string to_toml(const Config& config, Comments comments = Comments::help);
/// Every key: type, default, allowed values, explanation, and where it applies.
[[nodiscard]] std::string config_listing();

// --- what the library wants to know -----------------------------------------------------------

/// Type of weights, gradients and statistics: f32 where the run computes in 16 bits.
[[nodiscard]] DType master_type(const Config& config) noexcept;
/// What run.device says: "cpu", "cuda" (each rank of a machine takes the next device), or "cuda:1".
struct DeviceChoice {
  Device::Kind kind = Device::Kind::cpu;
  std::optional<int> index;  ///< Of the device, where one is named.
};
/// Throws InvalidArgument for any other text.
[[nodiscard]] DeviceChoice device_choice(const Config& config);
[[nodiscard]] nn::AttachOptions attach_options(const Config& config);
/// Mixup and erasing, with the label smoothing of the training.
[[nodiscard]] nn::RegularizeOptions regularize_options(const Config& config);
[[nodiscard]] comm::Options comm_options(const Config& config);
[[nodiscard]] data::DataSource data_source(const Config& config);
/// Options of the model for data of this shape. Throws InvalidArgument when the BatchNorm groups
/// cannot be dealt out to `ranks`.
[[nodiscard]] nn::ModelOptions model_options(const Config& config, const data::Dataset& data,
                                             int ranks);
/// Throws InvalidArgument when some batch would leave a rank without samples, or without equal
/// BatchNorm groups.
[[nodiscard]] data::SamplerOptions sampler_options(const Config& config, const data::Dataset& train,
                                                   int ranks);
[[nodiscard]] ContextOptions context_options(const Config& config);
/// Those of the type are what a run makes its optimizer of.
[[nodiscard]] optim::OptimizerOptions optimizer_options(const Config& config);
[[nodiscard]] std::unique_ptr<optim::Optimizer> make_optimizer(
    const Config& config, std::shared_ptr<comm::Communicator> comm, Device device = Device::cpu());
/// Learning rate at a fractional epoch, warm-up and scaling with the batch included.
[[nodiscard]] double learning_rate(const Config& config, double epoch);
[[nodiscard]] double momentum(const Config& config, double epoch);
/// Damping and intervals of the step after `steps` ones, at a fractional epoch.
[[nodiscard]] kfac::CurvatureSettings curvature_settings(const Config& config, double epoch,
                                                         std::int64_t steps);
/// Whether they ever change.
[[nodiscard]] bool has_curvature_schedule(const Config& config);

}  // namespace dkfac::app
