#include "core/shared/cuda/launch.cuh"
#include "nn/backends/backend_loss.h"
#include "nn/backends/cuda/each.cuh"
#include "nn/backends/cuda/loss_functors.h"
#include "nn/backends/dtype.h"

namespace dkfac::nn::cuda {
namespace {

using dkfac::cuda::for_each;
using dkfac::cuda::for_each_2d;
using dkfac::cuda::reduce_rows;

template <class T, class Targets>
void loss(Context& ctx, ConstTensorView logits, Targets targets, double scale, TensorView grad,
          TensorView sums) {
  const std::int64_t n = logits.dim(0), classes = logits.dim(1);
  if (n == 0) return;
  Scratch scratch(ctx);
  const auto column = [&] { return scratch.take(Shape{n}, DType::f64).data<double>(); };
  const RowScalars rows{column(), column(), column()};
  double* losses = column();
  const T* x = logits.data<T>();
  reduce_rows<RowState>(ctx, n, classes, MergeRows{}, LogitState<T, Targets>{x, classes, targets},
                        StoreRow<Targets>{rows, targets});
  reduce_rows<double>(ctx, n, classes, dkfac::cuda::Sum<double>{},
                      ClassLoss<T, Targets>{x, classes, targets, rows, scale,
                                            grad.empty() ? nullptr : grad.data<T>()},
                      StoreEach<double>{losses});
  reduce_rows<SumPair>(ctx, 1, n, AddPairs{}, LoadPair{losses, rows.correct},
                       AddToSums{sums.data<double>()});
}

}  // namespace

#include "nn/backends/output_kernels.inc"

void label_loss(Context& ctx, ConstTensorView logits, ConstTensorView labels, double smoothing,
                double scale, TensorView grad, TensorView sums) {
  const LabelTargets targets = label_targets(labels, smoothing, logits.dim(1));
  visit_floating(logits.dtype(),
                 [&]<class T>(Type<T>) { loss<T>(ctx, logits, targets, scale, grad, sums); });
}

void target_loss(Context& ctx, ConstTensorView logits, ConstTensorView targets, double scale,
                 TensorView grad, TensorView sums) {
  visit_computing(targets.dtype(), [&]<class S>(Type<S>) {
    const SoftTargets<S> soft{targets.data<S>(), logits.dim(1), kDistributionTolerance};
    visit_floating(logits.dtype(),
                   [&]<class T>(Type<T>) { loss<T>(ctx, logits, soft, scale, grad, sums); });
  });
}

void count_in_top(Context& ctx, ConstTensorView logits, ConstTensorView labels, std::int64_t k,
                  TensorView count) {
  const std::int64_t n = logits.dim(0), classes = logits.dim(1);
  if (n == 0) return;
  Scratch scratch(ctx);
  double* hits = scratch.take(Shape{n}, DType::f64).data<double>();
  const dkfac::cuda::Sum<double> sum;
  visit_floating(logits.dtype(), [&]<class T>(Type<T>) {
    reduce_rows<double>(ctx, n, classes, sum,
                        BeforeLabel<T>{logits.data<T>(), labels.data<std::int32_t>(), classes},
                        StoreInTop{static_cast<double>(k), hits});
  });
  reduce_rows<double>(ctx, 1, n, sum, LoadEach<double>{hits}, AddToCount{count.data<double>()});
}

void soften_labels(Context& ctx, ConstTensorView labels, double smoothing, TensorView targets) {
  const LabelTargets soft = label_targets(labels, smoothing, targets.dim(1));
  visit_computing(targets.dtype(), [&]<class S>(Type<S>) {
    for_each_2d(ctx.stream(), targets.dim(0), targets.dim(1),
                SoftenLabels<S>{soft, targets.data<S>()});
  });
}

void draw_labels(Context& ctx, ConstTensorView logits, const SampleKey& key, TensorView labels) {
  visit_floating(logits.dtype(), [&]<class T>(Type<T>) {
    for_each(ctx.stream(), logits.dim(0),
             DrawLabel<T>{logits.data<T>(), logits.dim(1), key, labels.data<std::int32_t>()});
  });
}

void sigmoid_loss(Context& ctx, ConstTensorView outputs, ConstTensorView targets, double scale,
                  TensorView grad, TensorView sums) {
  const std::int64_t n = outputs.dim(0), count = outputs.dim(1);
  if (n == 0) return;
  Scratch scratch(ctx);
  auto* rows = static_cast<SumPair*>(scratch.take(Shape{n, 2}, DType::f64).raw());
  visit_computing(outputs.dtype(), [&]<class T>(Type<T>) {
    reduce_rows<SumPair>(
        ctx, n, count, AddPairs{},
        SigmoidLoss<T>{outputs.data<T>(), targets.data<T>(), count, static_cast<T>(scale),
                       grad.empty() ? nullptr : grad.data<T>()},
        StoreEach<SumPair>{rows});
  });
  if (sums.empty()) return;
  reduce_rows<SumPair>(ctx, 1, n, AddPairs{}, LoadEach<SumPair>{rows},
                       AddToSums{sums.data<double>()});
}

}  // namespace dkfac::nn::cuda
