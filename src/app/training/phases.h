#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dkfac/data/dataset.h"
#include "dkfac/nn/model.h"

#include "app/shared/phases.h"
#include "app/shared/trainer.h"

namespace dkfac::app {

/// A phase with its data and step counts.
struct PhasePlan {
  Phase phase;
  const data::DataSplits* data = nullptr;
  std::int64_t steps_per_epoch = 0;
  std::int64_t first_step = 0;  ///< Steps of the run before this phase.
  double image_flops = 0;       ///< Of forward and backward, set by count_operations().
  std::string fingerprint{};    ///< Of the data, set by describe_run().
  [[nodiscard]] std::int64_t steps() const { return phase.epochs * steps_per_epoch; }
  /// Returns the training images of the phase's first `done` steps. With train.drop_last = false
  /// the last batch of an epoch is smaller.
  [[nodiscard]] std::int64_t images(std::int64_t done) const {
    const std::int64_t batch = phase.config.train.global_batch;
    const std::int64_t epoch = std::min(steps_per_epoch * batch, data->train.count);
    return (done / steps_per_epoch) * epoch + (done % steps_per_epoch) * batch;
  }
};

/// Returns phase data that borrows one data set for all phases.
[[nodiscard]] PhaseData one_for_all(const data::DataSplits& data);
/// Plans all phases of a run, none of them empty. Throws InvalidArgument when there is data for
/// another number of phases, when the data of phases differ in more than the image size, and for
/// batches that cannot be divided among `ranks`.
[[nodiscard]] std::vector<PhasePlan> plan_phases(const Config& config, const PhaseData& data,
                                                 int ranks);
/// Returns the phase of an epoch (from 1); past the end, the last phase.
[[nodiscard]] const PhasePlan& plan_at(const std::vector<PhasePlan>& plan, std::int64_t epoch);
[[nodiscard]] inline std::int64_t total_steps(const std::vector<PhasePlan>& plan) {
  return plan.back().first_step + plan.back().steps();
}
/// Returns the operations of the network in the first `steps` steps of the run.
[[nodiscard]] double work_of(const std::vector<PhasePlan>& plan, std::int64_t steps);
/// Fills in image_flops. Throws InvalidArgument when the network does not accept the images of a
/// phase.
void count_operations(nn::Model& model, std::vector<PhasePlan>& plan);
/// Formats a table with a row per phase: epochs, image size, batch, steps, learning rate and
/// momentum of the first and the last step, images and operations of the network (image_flops must
/// be set), and the totals. `seconds`: predicted time of each phase, for a column of its own;
/// empty: unknown.
[[nodiscard]] std::string phase_table(const std::vector<PhasePlan>& plan, int ranks,
                                      std::span<const double> seconds = {});
/// Returns the shape of one training image.
[[nodiscard]] inline Shape image_of(const PhasePlan& plan) {
  const data::Dataset& train = plan.data->train;
  return {train.height, train.width, train.channels};
}

}  // namespace dkfac::app
