#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/checkpoint/resume.h"
#include "app/run/placement.h"
#include "app/run/run_one.h"
#include "app/training/evaluate.h"

namespace dkfac::app {

/// A checkpoint and the configuration of its evaluation.
struct EvalRequest {
  ResumePoint point;
  Config config;  ///< Configuration of its run, with the overrides of the command line.
};
/// Finds the checkpoint and its configuration. Throws as find_resume_point() and parse_config().
[[nodiscard]] EvalRequest eval_request(const std::filesystem::path& where,
                                       const std::vector<std::string>& set);

/// Collective: find_placement() with the levels of run.hierarchical, which a single rank leaves out
/// as it exchanges nothing. Throws RunError on every rank where the ranks do not fill its nodes.
[[nodiscard]] DevicePlacement place_evaluation(const Config& config,
                                               std::shared_ptr<comm::Communicator> host,
                                               Position& position);

/// Collective: computes loss and accuracy on the test data as the run itself does. Throws RunError
/// on every rank when any rank cannot read the checkpoint.
[[nodiscard]] Tally evaluate_checkpoint(const EvalRequest& request, const data::DataSplits& data,
                                        const DevicePlacement& place, Position& position);

/// Formats "accuracy 75.00 %, top-5 92.00 %, loss 1.00000".
[[nodiscard]] std::string accuracy_text(const Tally& tally, std::int64_t classes,
                                        double target_top5);

/// Evaluates the checkpoints of a run as they appear; see "dkfac eval --watch".
[[nodiscard]] int watch(const EvalCommand& command, const Terminal& terminal);

}  // namespace dkfac::app
