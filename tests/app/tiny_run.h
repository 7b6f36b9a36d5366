#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/threads.h"

#include "app/shared/phases.h"
#include "app/shared/trainer.h"

/// Runs of 6 steps an epoch on 12x12 images.
namespace dkfac::app::tiny {

/// `phases`: the [[phase]] part of a file, which has the epochs then.
inline Config config(const std::string& optimizer, const std::vector<std::string>& more = {},
                     const std::string& phases = "") {
  std::vector<std::string> all = {"data.name=synthetic",         "data.synthetic_train=192",
                                  "data.synthetic_test=50",      "data.synthetic_size=12",
                                  "data.synthetic_classes=4",    "train.global_batch=32",
                                  "optimizer.type=" + optimizer, "lr.schedule=constant",
                                  "run.eval_batch=16",           "lr.lr=0.02",
                                  "run.log_interval=4",          "checkpoint.keep=100"};
  if (phases.empty()) all.emplace_back("run.epochs=2");
  if (optimizer == "kfac") {
    all.emplace_back("optimizer.damping=0.03");
    // The adaptive rule has its own intervals.
    if (std::find(more.begin(), more.end(), "optimizer.staleness=adaptive") == more.end())
      all.insert(all.end(), {"optimizer.statistics_interval=1", "optimizer.inverse_interval=4"});
  }
  all.insert(all.end(), more.begin(), more.end());
  return parse_config(phases, all, "test");
}

/// What rank 0 saw.
struct Outcome {
  RunResult result;
  std::map<std::int64_t, double> losses;  ///< By step, of this rank's samples.
  std::vector<std::string> warnings;
};

/// stop_at: the step after which the last rank asks to stop; 0: never.
inline Outcome run(const Config& config, int ranks, const CheckpointPlan& plan,
                   std::int64_t stop_at = 0) {
  set_threads(1);
  PhaseData data;
  for (const Phase& phase : phases_of(config))
    data.push_back(std::make_shared<data::DataSplits>(data::load_data(data_source(phase.config))));
  Outcome outcome;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const bool first = comm->rank() == 0, last = comm->rank() == ranks - 1;
    RunState state;
    TrainHooks hooks;
    if (first) {
      hooks.on_step = [&](const StepMetrics& r) { outcome.losses[r.step] = r.loss; };
      hooks.on_warning = [&](const std::string& text) { outcome.warnings.push_back(text); };
    }
    if (last && stop_at > 0)
      hooks.stop_requested = [&] { return state.result.steps + 1 == stop_at; };
    train(config, std::move(comm), data, hooks, state, plan);
    if (first) outcome.result = state.result;
  });
  return outcome;
}

}  // namespace dkfac::app::tiny
