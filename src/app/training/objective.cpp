#include "app/training/objective.h"

#include "dkfac/nn/loss.h"

namespace dkfac::app {
namespace {

void add_reconstruction(Context& ctx, TrainLoss loss, ConstTensorView outputs,
                        ConstTensorView targets, double scale, TensorView grad, TensorView sums) {
  if (loss == TrainLoss::sigmoid)
    return nn::sigmoid_cross_entropy(ctx, outputs, targets, scale, grad, sums);
  nn::squared_error(ctx, outputs, targets, scale, grad, sums.slice(0, 0, 1));
}

}  // namespace

void add_loss(Context& ctx, TrainLoss loss, ConstTensorView outputs, const Wanted& wanted,
              double scale, TensorView grad, TensorView sums) {
  if (loss != TrainLoss::softmax)
    return add_reconstruction(ctx, loss, outputs, wanted.images.reshape(outputs.shape()), scale,
                              grad, sums);
  if (wanted.targets.empty())
    nn::softmax_cross_entropy(ctx, outputs, wanted.labels, wanted.smoothing, scale, grad, sums);
  else
    nn::soft_cross_entropy(ctx, outputs, wanted.targets, scale, grad, sums);
}

void sampled_gradient(Context& ctx, TrainLoss loss, ConstTensorView outputs, const SampleKey& key,
                      double scale, TensorView drawn, TensorView grad, TensorView sums) {
  switch (loss) {
    case TrainLoss::softmax:
      nn::sample_labels(ctx, outputs, key, drawn);
      return nn::softmax_cross_entropy(ctx, outputs, drawn, 0, scale, grad, sums);
    case TrainLoss::sigmoid:
      nn::sample_bits(ctx, outputs, key, drawn);
      return nn::sigmoid_cross_entropy(ctx, outputs, drawn, scale, grad, {});
    case TrainLoss::squared:
      nn::sample_targets(ctx, outputs, key, drawn);
      return nn::squared_error(ctx, outputs, drawn, scale, grad, sums.slice(0, 0, 1));
  }
}

Shape drawn_shape(TrainLoss loss, const Shape& outputs) {
  return loss == TrainLoss::softmax ? Shape{outputs[0]} : outputs;
}

DType drawn_type(TrainLoss loss, DType outputs) {
  return loss == TrainLoss::softmax ? DType::i32 : outputs;
}

nn::OutputCurvature curvature_of(TrainLoss loss) {
  switch (loss) {
    case TrainLoss::softmax:
      return nn::softmax_curvature;
    case TrainLoss::sigmoid:
      return nn::sigmoid_curvature;
    case TrainLoss::squared:
      return nn::squared_curvature;
  }
  return {};
}

}  // namespace dkfac::app
