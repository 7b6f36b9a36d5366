#include "app/run/run_one.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/checkpoint/mean_image.h"
#include "app/checkpoint/store.h"
#include "app/logging/progress.h"
#include "app/logging/trace.h"
#include "app/run/agreement.h"
#include "app/run/job.h"
#include "app/run/memory_check.h"
#include "app/run/placement.h"
#include "app/run/signals.h"
#include "app/shared/phases.h"
#include "app/shared/trainer.h"
#include "core/shared/wait_watch.h"
#include "nn/shared/conv_plans.h"

namespace dkfac::app {

namespace {

class Run {
 public:
  Run(const RunPlan& plan, std::shared_ptr<comm::Communicator> comm, DataCache& cache,
      const Terminal& terminal)
      : plan_(plan), comm_(std::move(comm)), cache_(cache), terminal_(terminal) {}

  void operator()() {
    try {
      go();
      state_.position.activity = "report";
      finish();
    } catch (...) {
      fail();
    }
  }

  [[nodiscard]] const RunResult& result() const { return state_.result; }
  [[nodiscard]] RunEnd end() const {
    return {state_.part_done || state_.result.status != "stopped", where_};
  }

 private:
  void go() {
    const Config& config = plan_.config;
    const DevicePlacement place = find_placement(config, comm_, state_.position);
    comm_ = place.comm;
    share_cores(*comm_, config.run.threads);
    state_.position.activity = "data";
    data_ = load_phases(config, *comm_, state_.position, cache_);
    if (comm_->rank() == 0) print_warnings(cache_.take_remarks(), terminal_);
    state_.position.activity = "folder";
    open_folder();
    if (config.run.trace) {
      comm_->barrier("trace");  // Common start time of all ranks.
      trace_.emplace(comm_->rank());
    }
    const TraceScope scope(trace_ ? &*trace_ : nullptr);
    train_at(place, config, data_, hooks(), state_, checkpoints_);
  }

  // Opens the folder on rank 0 and shares its name and the resumed checkpoint with the other ranks.
  void open_folder() {
    on_all_ranks(state_.position,
                 [&] { comm::require_equal(*comm_, options_text(), "the command line"); });
    run_and_agree(*comm_, state_.position, [&] {
      if (comm_->rank() != 0) return;
      std::unique_ptr<RunLock> lock;
      if (plan_.if_exists == IfExists::resume) lock = claim_run(plan_.folder);
      claimed_ = lock != nullptr;
      if (plan_.resume) point_ = resume_point();
      folder_.emplace(plan_.folder, plan_.if_exists, std::move(lock));
      // A run that cannot be set up must leave an earlier one as it was, be it the resumed one or
      // one to be replaced.
      if (plan_.if_exists != IfExists::resume && !folder_->holds_run()) begin_folder();
      if (!plan_.quiet) progress_.emplace(terminal_, plan_.label, plan_.config.run.epochs);
    });
    const std::string own = folder_ ? folder_->path().string() : std::string();
    where_ = comm::all_gather_strings(*comm_, own).front();
    if (plan_.checkpoints) checkpoints_.folder = where_ / kCheckpointFolder;
    checkpoints_.failures = where_ / "failures";
    checkpoints_.until_epoch = plan_.until_epoch;
    checkpoints_.more_steps = plan_.more_steps;
    checkpoints_.more_epochs = plan_.more_epochs;
    const std::string resume = point_ ? point_->checkpoint.string() : std::string();
    if (plan_.resume) checkpoints_.resume = comm::all_gather_strings(*comm_, resume).front();
  }

  [[nodiscard]] ResumePoint resume_point() const {
    ResumePoint point = find_resume_point(*plan_.resume);
    print_warnings(point.warnings, terminal_);
    for (const std::string& change : compare_configurations(plan_.config, point.record))
      terminal_.err << warning_line("[resume] " + change) << std::endl;
    require_mean_image(safetensors::File::read(point.checkpoint / kModelFile),
                       data_.front()->train);
    if (!plan_.quiet)
      terminal_.out << "resuming after step " << point.record.result.steps << ", from "
                    << point.checkpoint.string() << std::endl;
    return point;
  }

  /// The options that decide what the ranks do together, one per line.
  [[nodiscard]] std::string options_text() const {
    return fmt::format("--resume: {}\n--until-epoch: {}\n--steps: {}\n--epochs-fraction: {}\n",
                       plan_.resume ? "yes" : "no", plan_.until_epoch, plan_.more_steps,
                       plan_.more_epochs);
  }

  void begin_folder() {
    if (point_) go_back_to(*point_);
    folder_->begin(plan_.config, plan_.command_line, point_ ? &point_->record : nullptr);
  }

  // Makes the checkpoint the latest before metrics are truncated: a run that is terminated before
  // its next checkpoint resumes from this one again. Later ones would be evaluated, counted in
  // checkpoint.keep and resumed from as if they were of the steps to come.
  void go_back_to(const ResumePoint& point) const {
    const std::int64_t step = point.record.result.steps;
    const std::filesystem::path root = plan_.folder / kCheckpointFolder;
    const std::filesystem::path own = root / checkpoint_name(step);
    std::error_code other;
    const bool here = std::filesystem::equivalent(point.checkpoint, own, other);
    if (plan_.if_exists != IfExists::resume) return;
    DKFAC_CHECK(here, "[resume] '", point.checkpoint.string(),
                "' is not one of the checkpoints that the run in '", plan_.folder.string(),
                "' goes on from; resume from it with another --out");
    point_to(own);
    if (const std::int64_t count = abandon_later(root, step); count > 0)
      terminal_.err << warning_line(fmt::format(
                           "[resume] checkpoints after step {} in '{}' belong to steps that are "
                           "done again; they are now called step-<n>.abandoned ({} of them): "
                           "resume from one with another --out, or remove them",
                           step, root.string(), count))
                    << std::endl;
  }

  void say_choice(const kfac::StepReport& report) {
    progress_->clear();
    terminal_.out << fmt::format(
                         "step {}: from the next one on statistics every {} and inverses every {} "
                         "steps, by which K-FAC adds {:.2f} to a step; other runs have them from "
                         "the start with optimizer.statistics_interval = {} and "
                         "optimizer.inverse_interval = {}",
                         report.step, report.statistics_interval, report.inverse_interval,
                         report.overhead, report.statistics_interval, report.inverse_interval)
                  << std::endl;
  }

  TrainHooks hooks() {
    TrainHooks hooks;
    hooks.stop_requested = stop_requested;
    if (trace_) hooks.on_activity = [this](const char* activity) { trace_->enter(activity); };
    hooks.on_ready = [this] {
      ready_ = true;
      if (folder_ && !folder_->begun()) begin_folder();
    };
    if (!folder_) return hooks;
    hooks.on_plan = [this](const std::string& table) {
      if (progress_) terminal_.out << table << std::flush;
    };
    hooks.on_weights = [this](const std::string& text) {
      if (progress_) terminal_.out << text << std::endl;
    };
    hooks.on_warning = [this](const std::string& text) { print_warnings({text}, terminal_); };
    hooks.on_log = [this](const StepMetrics& metrics) { folder_->add_step(metrics); };
    hooks.on_step = [this](const StepMetrics& metrics) {
      if (!progress_) return;
      progress_->step(metrics);
      if (metrics.report.intervals_chosen) say_choice(metrics.report);
    };
    hooks.on_epoch = [this, first = true](const RunResult& result) mutable {
      folder_->add_epoch(result);
      // Plans belong to this thread, and after an epoch all of them exist.
      if (std::exchange(first, false)) folder_->add_conv_plans(nn::describe_conv_plans());
      if (progress_) progress_->epoch(result);
    };
    return hooks;
  }

  void finish() {
    if (folder_ && folder_->begun()) folder_->finish(state_.result);
    const bool keeps_earlier = plan_.resume || plan_.if_exists == IfExists::overwrite;
    if (!trace_ || where_.empty() || (keeps_earlier && !ready_)) return;
    trace_->enter(nullptr);
    std::filesystem::create_directories(where_);  // Other hosts may not see rank 0's folder.
    write_file(where_ / trace_file_name(comm_->rank(), comm_->size()), trace_->json());
  }

  [[noreturn]] void fail() {
    const Failure failure = describe_current_exception(comm_->rank(), state_.position);
    auto scope = RunError::Scope::this_rank;
    try {
      throw;
    } catch (const RunError& error) {
      scope = error.scope;
    } catch (...) {
    }
    if (progress_) progress_->clear();
    // A run that was claimed and then refused has no `where_`.
    if (!where_.empty() || claimed_)
      write_error(where_.empty() ? plan_.folder : where_, comm_->rank(), failure);
    state_.result.status = "failed";
    state_.result.error = failure.what;
    try {
      finish();
    } catch (const std::exception&) {
      // The first failure is the one to report.
    }
    throw RunError(failure, scope);
  }

  const RunPlan& plan_;
  std::shared_ptr<comm::Communicator> comm_;
  DataCache& cache_;
  const Terminal& terminal_;
  PhaseData data_;
  RunState state_;
  bool claimed_ = false;         ///< Rank 0 holds the folder of the run to be resumed.
  std::filesystem::path where_;  ///< The run folder, once it is open.
  CheckpointPlan checkpoints_;
  std::optional<ResumePoint> point_;  ///< On rank 0.
  bool ready_ = false;                ///< Whether the run is set up, its checkpoint loaded.
  std::optional<RunFolder> folder_;
  std::optional<Progress> progress_;
  std::optional<Trace> trace_;
};

/// Ends the reading of data after a signal.
class StopWatch final : public WaitWatch {
 public:
  void poll() override {
    if (!stop_requested()) return;
    throw RunError({0,
                    {0, "stop"},
                    ExitCode::try_again,
                    "[run] stopped by a signal while data were read, before anything was trained; "
                    "run the same command again"},
                   RunError::Scope::this_rank);
  }
};

// Returns the part of the configuration that determines the data.
std::string data_text(const Config& config) {
  const std::string text = to_toml(config, Comments::none);
  // Line feeds separate lines and sections alone: in values they are escaped, and brackets are not.
  const std::size_t begin = text.find("\n[data]\n");
  return text.substr(begin, text.find("\n\n", begin) - begin) +
         (takes_crops(config.run.tta) ? " crops" : "");
}

}  // namespace

std::shared_ptr<const data::DataSplits> DataCache::get(const Config& config) {
  const std::lock_guard lock(mutex_);
  auto& set = sets_[data_text(config)];
  if (set == nullptr) {
    check_data_memory(config);
    const auto watch = std::make_shared<StopWatch>();
    watch_waits(watch);
    auto splits = std::make_shared<data::DataSplits>(data::load_data(data_source(config)));
    if (config.data.hold_out > 0) {
      DKFAC_CHECK(config.data.hold_out < splits->train.count,
                  "[config] data.hold_out = ", config.data.hold_out, " leaves nothing of the ",
                  splits->train.count, " training samples; lower it");
      data::hold_out(*splits, config.data.hold_out);
    }
    attach_mean_image(config, {&splits->train, &splits->test});
    for (const std::string& remark : splits->remarks)
      if (std::ranges::find(remarks_, remark) == remarks_.end()) remarks_.push_back(remark);
    set = std::move(splits);
  }
  return set;
}

std::vector<std::string> DataCache::take_remarks() {
  const std::lock_guard lock(mutex_);
  return std::exchange(remarks_, {});
}

PhaseData load_phases(const Config& config, comm::Communicator& comm, const Position& position,
                      DataCache& cache) {
  PhaseData data;
  const auto load = [&] {
    for (const Phase& phase : phases_of(config)) data.push_back(cache.get(phase.config));
  };
  const bool in_turn = config.data.name == "image-folder" && comm.size() > 1;
  if (in_turn) {
    run_and_agree(comm, position, [&] {
      if (comm.rank() == 0) load();
    });
  }
  run_and_agree(comm, position, [&] {
    if (!in_turn || comm.rank() != 0) load();
  });
  return data;
}

RunEnd run_one(const RunPlan& plan, std::shared_ptr<comm::Communicator> comm, DataCache& cache,
               const Terminal& terminal, RunResult& result) {
  Run run(plan, std::move(comm), cache, terminal);
  try {
    run();
  } catch (const RunError&) {
    result = run.result();
    throw;
  }
  result = run.result();
  return run.end();
}

void throw_stopped(std::int64_t step, const std::filesystem::path& where,
                   const std::string& advice) {
  throw RunError({0,
                  {step, "stop"},
                  ExitCode::try_again,
                  fmt::format("[run] stopped by a signal; results so far are in '{}', {}",
                              where.string(), advice)},
                 RunError::Scope::every_rank);
}

}  // namespace dkfac::app
