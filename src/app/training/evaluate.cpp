#include "app/training/evaluate.h"

#include <algorithm>
#include <array>

#include "dkfac/core/ops.h"
#include "dkfac/nn/loss.h"

#include "app/training/objective.h"

namespace dkfac::app {

namespace {

/// Accumulates the scores of one kind of logits over all batches.
class Score {
 public:
  explicit Score(Context& ctx, TrainLoss loss = TrainLoss::softmax)
      : loss_(loss),
        sums_(Tensor::zeros(ctx, {3}, DType::f64)),
        host_(Tensor::pinned(ctx, {3}, DType::f64)) {}
  void add(Context& ctx, ConstTensorView logits, const data::DeviceBatch& batch) {
    const TensorView sums = sums_;
    const Wanted wanted{.images = batch.images, .labels = batch.labels, .targets = {}};
    add_loss(ctx, loss_, logits, wanted, 1.0, {}, sums.slice(0, 0, 2));
    if (loss_ == TrainLoss::softmax)
      nn::count_in_top(ctx, logits, batch.labels, 5, sums.slice(0, 2, 1));
    samples_ += batch.labels.numel();
  }
  void fetch(Context& ctx) { ops::copy(ctx, sums_, host_); }
  /// Returns the result; the host must have synchronized with the fetch.
  [[nodiscard]] Tally tally() const {
    Tally out;
    out.add(loss_, host_.data<double>(), samples_);
    out.top5 = host_.data<double>()[2];
    return out;
  }

 private:
  TrainLoss loss_;
  Tensor sums_, host_;  ///< Loss, correct samples, and samples whose label is in the top five.
  std::int64_t samples_ = 0;
};

/// Calls f(batch) on every batch of the loader that has samples of this rank.
template <class F>
void for_each_batch(Context& ctx, data::DeviceLoader& loader, F f) {
  data::DeviceBatch batch;
  loader.start_epoch(ctx, 0);
  while (loader.next(ctx, batch)) {
    if (batch.labels.numel() > 0) f(batch);  // A short last batch may have nothing for this rank.
  }
}

}  // namespace

Tally sum_over_ranks(const Tally& mine, comm::Communicator& comm) {
  std::array<double, 4> sums{mine.loss, mine.correct, mine.samples, mine.top5};
  comm.all_reduce(view_of(sums.data(), {4}), comm::ReduceOp::sum, Stream::cpu(), "tally");
  return {sums[0], sums[1], sums[2], sums[3], mine.labelled};
}

Tally evaluate(Context& ctx, nn::Model& model, data::DeviceLoader& loader, comm::Communicator& comm,
               const TestViews& views, TrainLoss loss) {
  Score mine(ctx, loss);
  MeanLogits logits(views);
  for_each_batch(ctx, loader, [&](const data::DeviceBatch& batch) {
    mine.add(ctx, logits(ctx, model, batch.images), batch);
  });
  mine.fetch(ctx);
  ctx.stream().synchronize();
  return sum_over_ranks(mine.tally(), comm);
}

ViewTally evaluate_views(Context& ctx, nn::Model& model, data::DeviceLoader& loader,
                         comm::Communicator& comm, const TestViews& views) {
  Score plain(ctx), mean(ctx);
  MeanLogits logits(views);
  for_each_batch(ctx, loader, [&](const data::DeviceBatch& batch) {
    mean.add(ctx,
             logits(ctx, model, batch.images,
                    [&](ConstTensorView first) { plain.add(ctx, first, batch); }),
             batch);
  });
  plain.fetch(ctx);
  mean.fetch(ctx);
  ctx.stream().synchronize();
  return {sum_over_ranks(plain.tally(), comm), sum_over_ranks(mean.tally(), comm)};
}

}  // namespace dkfac::app
