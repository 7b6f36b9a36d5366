#pragma once

#include <limits>
#include <optional>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/nn/model.h"

#include "app/shared/config.h"
#include "app/training/views.h"
#include "data/shared/device_data.h"

namespace dkfac::app {

/// Sums of loss and accuracy over samples of this rank; the loss of a reconstruction by sigmoids is
/// without the entropy of the images.
struct Tally {
  double loss = 0, correct = 0, samples = 0;
  double top5 = 0;  ///< Samples whose label is among the five largest logits, if they are counted.
  bool labelled = true;  ///< Whether the last add() was of labels.
  /// Adds the sums of add_loss() over `count` samples.
  void add(TrainLoss kind, const double* sums, std::int64_t count) {
    labelled = kind == TrainLoss::softmax;
    loss += labelled ? sums[0] : sums[0] - sums[1];
    correct += labelled ? sums[1] : 0;
    samples += static_cast<double>(count);
  }
  [[nodiscard]] double mean_loss() const { return loss / samples; }  ///< A NaN without samples.
  /// A NaN of a loss of reconstruction.
  [[nodiscard]] double accuracy() const {
    return labelled ? correct / samples : std::numeric_limits<double>::quiet_NaN();
  }
};
/// Returns the top-5 accuracy; nothing for kTop5Classes or fewer, or with a target, which is
/// run.target_top5, for kTop5 or fewer.
[[nodiscard]] inline std::optional<double> top5_accuracy(const Tally& tested, std::int64_t classes,
                                                         double target = 0) {
  if (!tested.labelled) return std::nullopt;
  return classes > (target > 0 ? kTop5 : kTop5Classes) ? std::optional(tested.top5 / tested.samples)
                                                       : std::nullopt;
}
/// Collective: returns the sum over ranks.
[[nodiscard]] Tally sum_over_ranks(const Tally& mine, comm::Communicator& comm);

/// Returns sampling options for every test sample once, in order.
[[nodiscard]] inline data::SamplerOptions test_order(std::int64_t batch, std::int64_t count) {
  return {.count = count, .global_batch = batch, .shuffle = false, .drop_last = false};
}

/// Collective: evaluates the mean of the logits over the views of each image, with running
/// statistics and without label smoothing. Each sample counts once at any number of ranks. Images
/// of several views must be [n,h,w,c]; those of a loss of reconstruction have one. The host
/// synchronizes with a device once.
[[nodiscard]] Tally evaluate(Context& ctx, nn::Model& model, data::DeviceLoader& loader,
                             comm::Communicator& comm, const TestViews& views = {},
                             TrainLoss loss = TrainLoss::softmax);

/// Results of the first view of each image alone, and of evaluate().
struct ViewTally {
  Tally plain, mean;
};
[[nodiscard]] ViewTally evaluate_views(Context& ctx, nn::Model& model, data::DeviceLoader& loader,
                                       comm::Communicator& comm, const TestViews& views,
                                       TrainLoss loss = TrainLoss::softmax);

}  // namespace dkfac::app
