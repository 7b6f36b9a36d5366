#include "dkfac/app/trainer.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/core.h>

#include "dkfac/core/version.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"

#include "app/agreement.h"
#include "app/evaluate.h"
#include "app/phase_timer.h"
#include "app/run_summary.h"

namespace dkfac::app {

namespace {

// Calls a collective that throws on every rank when it throws at all; rank 0 speaks for all.
template <class Work>
void on_all_ranks(const Position& position, Work work) {
  const auto raise = [&] {
    throw RunError(describe_current_exception(0, position), RunError::Scope::every_rank);
  };
  try {
    work();
  } catch (const InvalidArgument&) {
    raise();
  } catch (const NumericError&) {
    raise();
  }
}

std::string describe_vote(const kfac::VoteResult& vote) {
  return fmt::format("non-finite loss on {} ranks, gradient on {}, statistic on {}",
                     vote.nonfinite_loss, vote.nonfinite_gradient, vote.nonfinite_statistic);
}

class Trainer {
 public:
  Trainer(const Config& config, std::shared_ptr<comm::Communicator> comm,
          const nn::DataSplits& data, const TrainHooks& hooks, RunState& state)
      : config_(config),
        comm_(std::move(comm)),
        data_(data),
        hooks_(hooks),
        result_(state.result),
        position_(state.position),
        ctx_(Device::cpu(), {.threads = config.run.threads}) {}

  void run() {
    describe_run();
    compare_ranks();
    enter("setup");
    together(*comm_, position_, [this] { build(); });
    on_all_ranks(position_, [this] { optimizer_->prepare(); });
    for (std::int64_t epoch = 1; epoch <= config_.run.epochs; ++epoch) {
      if (!train_epoch(epoch)) {
        result_.status = "stopped";
        break;
      }
      finish_epoch(epoch);
    }
    if (result_.status == "running") result_.status = "ok";
    result_.total_seconds = total_.seconds();
  }

 private:
  void enter(const char* phase) { position_.phase = phase; }

  void describe_run() {
    result_.name = config_.run.name;
    result_.optimizer = name_of(config_.optimizer.type);
    result_.model = config_.model.name;
    result_.data = data_.train.name;
    result_.version = version();
    result_.configuration = to_toml(config_, Comments::none);
    result_.seed = static_cast<std::uint64_t>(config_.run.seed);
    result_.ranks = comm_->size();
    result_.global_batch = config_.train.global_batch;
    if (config_.run.target > 0) result_.target_accuracy = config_.run.target;
  }

  void compare_ranks() {
    enter("config");
    on_all_ranks(position_,
                 [this] { comm::require_equal(*comm_, result_.configuration, "configuration"); });
    enter("data");
    on_all_ranks(position_, [this] {
      comm::require_equal(
          *comm_, fmt::format("{:x}-{:x}", fingerprint(data_.train), fingerprint(data_.test)),
          "data set (its fingerprint)");
    });
  }

  void build() {
    const int rank = comm_->rank(), size = comm_->size();
    const nn::SamplerOptions sampler = sampler_options(config_, data_.train, size);
    steps_per_epoch_ = nn::batches_per_epoch(sampler);
    const nn::SamplerOptions sequential{.count = data_.test.count,
                                        .global_batch = config_.run.eval_batch,
                                        .shuffle = false,
                                        .drop_last = false};
    model_ = nn::make_model(ctx_, model_options(config_, data_.train, size));
    result_.parameters = model_->parameter_count();
    const nn::Normalization normalization = nn::normalization_of(data_.train);
    const DType dtype = config_.run.precision;
    loader_.emplace(data_.train, normalization, sampler, rank, size, dtype);
    test_loader_.emplace(data_.test, normalization, sequential, rank, size, dtype);
    optimizer_ = make_optimizer(config_, comm_, {.threads = config_.run.threads});
    attachment_.emplace(*model_, *optimizer_);
    timed_.emplace(*attachment_);
    model_->set_observer(&*timed_);
  }

  /// False when the run is to stop.
  bool train_epoch(std::int64_t epoch) {
    const Stopwatch epoch_watch;
    epoch_tally_ = window_tally_ = {};
    epoch_samples_ = 0;
    enter("data");
    Stopwatch watch;
    loader_->start_epoch(epoch);
    nn::Batch batch;
    bool go_on = true;
    for (std::int64_t b = 0; go_on && loader_->next(batch); ++b) {
      add_phase("data", watch.lap());
      const double at = static_cast<double>(epoch - 1) +
                        static_cast<double>(b) / static_cast<double>(steps_per_epoch_);
      go_on = train_step(batch, learning_rate(config_, at));
      record_step(epoch, epoch_watch.seconds());
      enter("data");
      watch.lap();
    }
    epoch_seconds_ = epoch_watch.seconds();
    result_.train_seconds += epoch_seconds_;
    return go_on;
  }

  bool train_step(const nn::Batch& batch, double lr) {
    lr_ = lr;
    Stopwatch watch;
    attachment_->set_scale({.loss_scale = 1, .global_batch = batch.global_batch});
    enter("forward");
    const ConstTensorView logits = model_->forward(ctx_, batch.images, nn::Mode::train);
    double optimizer_seconds = timed_->take();
    add_phase("forward", watch.lap() - optimizer_seconds);

    enter("backward");
    if (!grad_.is_set() || grad_.shape() != logits.shape())
      grad_ = Tensor::empty(ctx_, logits.shape(), logits.dtype());
    const nn::LossSum sum =
        nn::softmax_cross_entropy(ctx_, logits, batch.labels, config_.train.label_smoothing,
                                  1.0 / static_cast<double>(batch.global_batch), grad_);
    model_->backward(ctx_, grad_);
    const double in_backward = timed_->take();
    add_phase("backward", watch.lap() - in_backward);

    enter("update");
    kfac::Vote vote;
    vote.loss_nonfinite = !std::isfinite(sum.loss);
    vote.stop = hooks_.stop_requested && hooks_.stop_requested();
    on_all_ranks(position_,
                 [&] { report_ = optimizer_->step({.lr = lr, .vote = vote}, ctx_.stream()); });
    optimizer_seconds += in_backward + watch.lap();
    add_optimizer_phases(optimizer_seconds);
    ++result_.steps;
    position_.step = result_.steps;
    epoch_samples_ += batch.global_batch;
    count(sum, static_cast<std::int64_t>(batch.labels.size()));
    return report_.vote.stop == 0;
  }

  void count(const nn::LossSum& sum, std::int64_t samples) {
    step_tally_ = {};
    if (report_.updated) {
      step_tally_.add(sum.loss, sum.correct, samples);
      epoch_tally_.add(sum.loss, sum.correct, samples);
      window_tally_.add(sum.loss, sum.correct, samples);
      skipped_in_a_row_ = 0;
      return;
    }
    ++result_.skipped_steps;
    if (++skipped_in_a_row_ < config_.train.max_skipped_steps) return;
    on_all_ranks(position_, [this] {
      throw NumericError(fmt::format(
          "[train] {} steps in a row without an update ({}); lower the learning rate, lengthen its "
          "warm-up, or raise optimizer.damping",
          skipped_in_a_row_, describe_vote(report_.vote)));
    });
  }

  void record_step(std::int64_t epoch, double seconds) {
    StepRecord record;
    record.epoch = epoch;
    record.epochs = config_.run.epochs;
    record.step = result_.steps;
    record.total_steps = config_.run.epochs * steps_per_epoch_;
    record.lr = lr_;
    record.images_per_second = static_cast<double>(epoch_samples_) / seconds;
    record.skipped_steps = result_.skipped_steps;
    record.report = report_;
    if (hooks_.on_step) {
      record.loss = step_tally_.mean_loss();
      record.accuracy = step_tally_.accuracy();
      hooks_.on_step(record);
    }
    // Every rank takes part in the sum, whoever listens.
    if (config_.run.log_interval == 0 || result_.steps % config_.run.log_interval != 0) return;
    const Tally all = sum_over_ranks(window_tally_, *comm_);
    window_tally_ = {};
    record.loss = all.mean_loss();
    record.accuracy = all.accuracy();
    if (hooks_.on_log) hooks_.on_log(record);
  }

  void finish_epoch(std::int64_t epoch) {
    enter("evaluation");
    Stopwatch watch;
    const Tally trained = sum_over_ranks(epoch_tally_, *comm_);
    nn::average_buffers(ctx_, *model_, *comm_);
    const Tally tested = evaluate(ctx_, *model_, *test_loader_, *comm_);
    add_phase("evaluation", watch.lap());

    EpochRecord record;
    record.epoch = epoch;
    record.step = result_.steps;
    record.lr = lr_;
    record.train_loss = trained.mean_loss();
    record.train_accuracy = trained.accuracy();
    record.test_loss = tested.mean_loss();
    record.test_accuracy = tested.accuracy();
    record.train_seconds = result_.train_seconds;
    record.images_per_second = static_cast<double>(epoch_samples_) / epoch_seconds_;
    record.skipped_steps = result_.skipped_steps;
    add_epoch(result_, record);
    result_.total_seconds = total_.seconds();
    if (hooks_.on_epoch) hooks_.on_epoch(result_);
  }

  void add_phase(const char* phase, double seconds) {
    result_.phase_seconds[phase] += std::max(0.0, seconds);
  }

  // `seconds`: all time in the optimizer's calls; what it does not name is updating.
  void add_optimizer_phases(double seconds) {
    const kfac::PhaseSeconds& named = report_.seconds;
    add_phase("statistics", named.statistics);
    add_phase("exchange", named.exchange);
    add_phase("inverse", named.inverse);
    add_phase("update", seconds - named.statistics - named.exchange - named.inverse);
  }

  const Config& config_;
  std::shared_ptr<comm::Communicator> comm_;
  const nn::DataSplits& data_;
  const TrainHooks& hooks_;
  RunResult& result_;
  Position& position_;

  Context ctx_;
  std::unique_ptr<nn::Model> model_;
  std::optional<nn::Loader> loader_, test_loader_;
  std::unique_ptr<kfac::Optimizer> optimizer_;
  std::optional<nn::OptimizerAttachment> attachment_;
  std::optional<TimedObserver> timed_;
  Tensor grad_;

  Stopwatch total_;
  kfac::StepReport report_;
  Tally step_tally_, window_tally_, epoch_tally_;
  std::int64_t steps_per_epoch_ = 0, epoch_samples_ = 0, skipped_in_a_row_ = 0;
  double lr_ = 0, epoch_seconds_ = 0;
};

}  // namespace

void train(const Config& config, std::shared_ptr<comm::Communicator> comm,
           const nn::DataSplits& data, const TrainHooks& hooks, RunState& state) {
  Trainer(config, std::move(comm), data, hooks, state).run();
}

}  // namespace dkfac::app
