#include "app/evaluate.h"

#include <array>

#include "dkfac/nn/loss.h"

namespace dkfac::app {

Tally sum_over_ranks(const Tally& mine, comm::Communicator& comm) {
  std::array<double, 3> sums{mine.loss, mine.correct, mine.samples};
  comm.all_reduce(view_of(sums.data(), {3}), comm::ReduceOp::sum, Stream::cpu(), "tally");
  return {sums[0], sums[1], sums[2]};
}

Tally evaluate(Context& ctx, nn::Model& model, nn::Loader& loader, comm::Communicator& comm) {
  Tally mine;
  nn::Batch batch;
  loader.start_epoch(0);
  while (loader.next(batch)) {
    if (batch.labels.empty()) continue;  // A short last batch has nothing for this rank.
    const ConstTensorView logits = model.forward(ctx, batch.images, nn::Mode::eval);
    const nn::LossSum sum = nn::softmax_cross_entropy(ctx, logits, batch.labels, 0.0, 1.0, {});
    mine.add(sum.loss, sum.correct, static_cast<std::int64_t>(batch.labels.size()));
  }
  return sum_over_ranks(mine, comm);
}

}  // namespace dkfac::app
