#include "app/training/evaluate.h"

#include <array>

#include "dkfac/nn/loss.h"

#include "app/training/loss_sums.h"
#include "app/training/objective.h"

namespace dkfac::app {

namespace {

/// The scores of one kind of logits over all batches.
class Score {
 public:
  Score(Context& ctx, TrainLoss loss) : loss_(loss), sums_(ctx) {}
  void add(Context& ctx, ConstTensorView logits, const data::DeviceBatch& batch) {
    const Wanted wanted{.images = batch.images, .labels = batch.labels, .targets = {}};
    add_loss(ctx, loss_, logits, wanted, 1.0, {}, sums_.sums());
    if (loss_ == TrainLoss::softmax) nn::count_in_top(ctx, logits, batch.labels, 5, sums_.top5());
    samples_ += batch.labels.numel();
  }
  void fetch(Context& ctx) { sums_.fetch(ctx); }
  /// Returns the result; the host must have synchronized with the fetch.
  [[nodiscard]] Tally tally() const {
    Tally out;
    out.add(loss_, sums_.fetched(), samples_);
    out.top5 = sums_.fetched_top5();
    return out;
  }

 private:
  TrainLoss loss_;
  LossSums sums_;
  std::int64_t samples_ = 0;
};

}  // namespace

Tally sum_over_ranks(const Tally& mine, comm::Communicator& comm) {
  std::array<double, 4> sums{mine.loss, mine.correct, mine.samples, mine.top5};
  comm.all_reduce(view_of(sums.data(), {4}), comm::ReduceOp::sum, Stream::cpu(), "tally");
  return {sums[0], sums[1], sums[2], sums[3], mine.labelled};
}

Tally evaluate(Context& ctx, nn::Model& model, data::DeviceLoader& loader, comm::Communicator& comm,
               const TestViews& views, TrainLoss loss) {
  return evaluate_views(ctx, model, loader, comm, views, loss).mean;
}

ViewTally evaluate_views(Context& ctx, nn::Model& model, data::DeviceLoader& loader,
                         comm::Communicator& comm, const TestViews& views, TrainLoss loss) {
  const bool several = views.corners || views.flips;
  Score plain(ctx, loss), mean(ctx, loss);
  MeanLogits logits(views);
  data::DeviceBatch batch;
  const auto add_plain = [&](ConstTensorView first) {
    if (several) plain.add(ctx, first, batch);
  };
  loader.start_epoch(ctx, 0);
  while (loader.next(ctx, batch)) {
    if (batch.labels.numel() == 0) continue;  // Of a short last batch this rank may have nothing.
    mean.add(ctx, logits(ctx, model, batch.images, add_plain), batch);
  }
  plain.fetch(ctx);
  mean.fetch(ctx);
  ctx.stream().synchronize();
  const Tally all = sum_over_ranks(mean.tally(), comm);
  return {several ? sum_over_ranks(plain.tally(), comm) : all, all};
}

}  // namespace dkfac::app
