#include "app/evaluate.h"

#include <algorithm>
#include <array>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/loss.h"

namespace dkfac::app {

namespace {

void add(Context& ctx, ConstTensorView logits, const nn::Batch& batch, Tally& tally) {
  const nn::LossSum sum = nn::softmax_cross_entropy(ctx, logits, batch.labels, 0.0, 1.0, {});
  tally.add(sum.loss, sum.correct, static_cast<std::int64_t>(batch.labels.size()));
}

/// Calls f(batch) on every batch of the loader with a sample of this rank.
template <class F>
void for_each_batch(nn::Loader& loader, F f) {
  nn::Batch batch;
  loader.start_epoch(0);
  while (loader.next(batch)) {
    if (!batch.labels.empty()) f(batch);  // A short last batch may have nothing for this rank.
  }
}

template <class T>
void mirror_rows(ConstTensorView from, TensorView to) {
  const std::int64_t rows = from.dim(0) * from.dim(1), width = from.dim(2), c = from.dim(3);
  const T* in = from.data<T>();
  T* out = to.data<T>();
  for (std::int64_t row = 0; row < rows; ++row, in += width * c, out += width * c) {
    for (std::int64_t x = 0; x < width; ++x) std::copy_n(in + (width - 1 - x) * c, c, out + x * c);
  }
}

/// Memory of a batch that is kept for the next one of the same size.
void resize(Context& ctx, Tensor& tensor, ConstTensorView like) {
  if (!tensor.is_set() || tensor.shape() != like.shape())
    tensor = Tensor::empty(ctx, like.shape(), like.dtype());
}

}  // namespace

Tally sum_over_ranks(const Tally& mine, comm::Communicator& comm) {
  std::array<double, 3> sums{mine.loss, mine.correct, mine.samples};
  comm.all_reduce(view_of(sums.data(), {3}), comm::ReduceOp::sum, Stream::cpu(), "tally");
  return {sums[0], sums[1], sums[2]};
}

void mirror(ConstTensorView from, TensorView to) {
  DKFAC_CHECK(from.ndim() == 4 && to.shape() == from.shape() && to.dtype() == from.dtype(),
              "[mirror] takes two tensors [n,h,w,c] of one type, not ", from.shape(), " and ",
              to.shape(), "; flat data has no mirror image");
  if (from.dtype() == DType::f64)
    mirror_rows<double>(from, to);
  else
    mirror_rows<float>(from, to);
}

Tally evaluate(Context& ctx, nn::Model& model, nn::Loader& loader, comm::Communicator& comm) {
  Tally mine;
  for_each_batch(loader, [&](const nn::Batch& batch) {
    add(ctx, model.forward(ctx, batch.images, nn::Mode::eval), batch, mine);
  });
  return sum_over_ranks(mine, comm);
}

FlipTally evaluate_flipped(Context& ctx, nn::Model& model, nn::Loader& loader,
                           comm::Communicator& comm) {
  FlipTally mine;
  Tensor mirrored, sum;
  for_each_batch(loader, [&](const nn::Batch& batch) {
    const ConstTensorView logits = model.forward(ctx, batch.images, nn::Mode::eval);
    add(ctx, logits, batch, mine.plain);
    resize(ctx, mirrored, batch.images);
    resize(ctx, sum, logits);
    ops::cast(ctx, logits, sum);  // The model's own memory is about to be used again.
    mirror(batch.images, mirrored);
    ops::axpby(ctx, 0.5, model.forward(ctx, mirrored, nn::Mode::eval), 0.5, sum);
    add(ctx, sum, batch, mine.mean);
  });
  return {sum_over_ranks(mine.plain, comm), sum_over_ranks(mine.mean, comm)};
}

}  // namespace dkfac::app
