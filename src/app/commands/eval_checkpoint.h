#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/checkpoint/resume.h"
#include "app/run/placement.h"
#include "app/run/run_one.h"
#include "app/training/evaluate.h"

namespace dkfac::app {

/// A checkpoint and how it is to be evaluated.
struct EvalRequest {
  ResumePoint point;
  Config config;  ///< That of its run, with what the command line says over it.
};
/// Throws as find_resume_point() and parse_config().
[[nodiscard]] EvalRequest eval_request(const std::filesystem::path& where,
                                       const std::vector<std::string>& set);

/// Collective: loss and accuracy on the test data, as the run itself takes them. Throws RunError on
/// every rank when some rank cannot read the checkpoint.
[[nodiscard]] Tally evaluate_checkpoint(const EvalRequest& request, const data::DataSplits& data,
                                        const DevicePlacement& place, Position& position);

/// "accuracy 75.00 %, top-5 92.00 %, loss 1.00000".
[[nodiscard]] std::string accuracy_text(const Tally& tally, std::int64_t classes);

/// Evaluates the checkpoints of a run as they appear; see "dkfac eval --watch".
[[nodiscard]] int watch(const EvalCommand& command, const Terminal& terminal);

}  // namespace dkfac::app
