#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "nn/backends/backend_loss.h"
#include "nn/backends/cpu/parallel.h"
#include "nn/backends/cpu/storage.h"
#include "nn/backends/cuda/loss_functors.h"
#include "nn/backends/dtype.h"

namespace dkfac::nn::cpu {
namespace {

/// Returns the index of the first largest element; -1 when an element is NaN.
template <class T>
std::int64_t first_largest(const T* x, std::int64_t count) {
  std::int64_t best = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    if (load(x[k]) != load(x[k])) return -1;
    if (load(x[k]) > load(x[best])) best = k;
  }
  return best;
}

/// A value that is never the index of a sample's largest logit.
constexpr std::int64_t kNoLabel = -2;

/// A label softened by smoothing; of(k) is the target of class k.
struct Smoothed {
  std::int64_t label;
  double hit, elsewhere;
  [[nodiscard]] double of(std::int64_t k) const { return k == label ? hit : elsewhere; }
};

template <class S>
struct Soft {
  std::int64_t label;
  const S* row;
  [[nodiscard]] double of(std::int64_t k) const { return static_cast<double>(row[k]); }
};

template <class S>
Soft<S> soft_row(const S* row, std::int64_t classes) {
  double sum = 0;
  bool negative = false;
  for (std::int64_t k = 0; k < classes; ++k) {
    sum += static_cast<double>(row[k]);
    negative = negative || !(row[k] >= S{0});
  }
  const bool valid = !negative && std::abs(sum - 1) <= kDistributionTolerance;
  return {valid ? first_largest(row, classes) : kNoLabel, row};
}

/// Computes the loss of one sample; its gradient goes to `grad` unless that is null.
template <class T, class Target>
double sample_loss(const T* x, std::int64_t classes, const Target& target, std::int64_t largest,
                   double scale, T* grad) {
  if (largest < 0 || target.label == kNoLabel) {
    const auto nan = std::numeric_limits<Computed<T>>::quiet_NaN();
    if (grad != nullptr) std::fill_n(grad, classes, store<T>(nan));
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto value = [&](std::int64_t k) { return static_cast<double>(load(x[k])); };
  const double top = value(largest);
  double sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(value(k) - top);
  const double log_sum = std::log(sum);
  double loss = 0;
  for (std::int64_t k = 0; k < classes; ++k) {
    const double log_p = value(k) - top - log_sum, t = target.of(k);
    if (t != 0) loss -= t * log_p;  // A logit of -infinity adds no loss where the target is 0.
    if (grad == nullptr) continue;
    grad[k] = store<T>(static_cast<Computed<T>>(scale * (std::exp(log_p) - t)));
  }
  return loss;
}

/// Computes the losses of all samples; target(i) gives the target of sample i.
template <class T, class MakeTarget>
void batch_loss(Context& ctx, ConstTensorView logits, const MakeTarget& target, double scale,
                TensorView grad, TensorView sums) {
  const std::int64_t n = logits.dim(0), classes = logits.dim(1);
  Scratch scratch(ctx);
  // Losses are stored per sample and then summed in order: bitwise identical for any number of
  // threads.
  double* losses = scratch.take(Shape{n}, DType::f64).data<double>();
  auto* correct = scratch.take(Shape{n}, DType::i32).data<std::int32_t>();
  const T* x = logits.data<T>();
  T* dx = grad.empty() ? nullptr : grad.data<T>();
  each(n, 16 * classes, [&](std::int64_t i) {
    const auto wanted = target(i);
    const std::int64_t largest = first_largest(x + i * classes, classes);
    correct[i] = largest == wanted.label ? 1 : 0;
    losses[i] = sample_loss(x + i * classes, classes, wanted, largest, scale,
                            dx == nullptr ? nullptr : dx + i * classes);
  });
  double loss = 0;
  std::int64_t hits = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    loss += losses[i];
    hits += correct[i];
  }
  sums.data<double>()[0] += loss;
  sums.data<double>()[1] += static_cast<double>(hits);
}

using cuda::AddNormal;
using cuda::DrawBit;
using cuda::DrawTargets;
using cuda::SigmoidCurvature;
using cuda::SoftmaxCurvature;

}  // namespace

#include "nn/backends/output_kernels.inc"

void label_loss(Context& ctx, ConstTensorView logits, ConstTensorView labels, double smoothing,
                double scale, TensorView grad, TensorView sums) {
  const auto all = cuda::label_targets(labels, smoothing, logits.dim(1));
  const auto target = [=](std::int64_t i) {
    return Smoothed{all.valid(i) ? all.labels[i] : kNoLabel, all.hit, all.elsewhere};
  };
  visit_floating(logits.dtype(),
                 [&]<class T>(Type<T>) { batch_loss<T>(ctx, logits, target, scale, grad, sums); });
}

void target_loss(Context& ctx, ConstTensorView logits, ConstTensorView targets, double scale,
                 TensorView grad, TensorView sums) {
  const std::int64_t classes = logits.dim(1);
  visit_computing(targets.dtype(), [&]<class S>(Type<S>) {
    const auto* rows = targets.data<S>();
    const auto target = [&](std::int64_t i) { return soft_row(rows + i * classes, classes); };
    visit_floating(logits.dtype(), [&]<class T>(Type<T>) {
      batch_loss<T>(ctx, logits, target, scale, grad, sums);
    });
  });
}

void count_in_top(Context& ctx, ConstTensorView logits, ConstTensorView labels, std::int64_t k,
                  TensorView count) {
  const std::int64_t n = logits.dim(0), classes = logits.dim(1);
  Scratch scratch(ctx);
  double* hits = scratch.take(Shape{n}, DType::f64).data<double>();
  const cuda::StoreInTop store{static_cast<double>(k), hits};
  visit_floating(logits.dtype(), [&]<class T>(Type<T>) {
    const cuda::BeforeLabel<T> before{logits.data<T>(), labels.data<std::int32_t>(), classes};
    each(n, 2 * classes, [&](std::int64_t row) {
      double sum = 0;
      for (std::int64_t c = 0; c < classes; ++c) sum += before(row, c);
      store(row, sum);
    });
  });
  *count.data<double>() += std::accumulate(hits, hits + n, 0.0);
}

void soften(ConstTensorView labels, double smoothing, TensorView targets) {
  const std::int64_t classes = targets.dim(1);
  visit_computing(targets.dtype(), [&]<class T>(Type<T>) {
    const cuda::SoftenLabels<T> soft{cuda::label_targets(labels, smoothing, classes),
                                     targets.data<T>()};
    for (std::int64_t i = 0; i < labels.numel(); ++i)
      for (std::int64_t k = 0; k < classes; ++k) soft(i, k);
  });
}

void draw(ConstTensorView logits, const SampleKey& key, TensorView labels) {
  const std::int64_t classes = logits.dim(1);
  visit_floating(logits.dtype(), [&]<class T>(Type<T>) {
    each(logits.dim(0), 16 * classes,
         cuda::DrawLabel<T>{logits.data<T>(), classes, key, labels.data<std::int32_t>()});
  });
}

void soften_labels(Context&, ConstTensorView labels, double smoothing, TensorView targets) {
  soften(labels, smoothing, targets);
}

void draw_labels(Context&, ConstTensorView logits, const SampleKey& key, TensorView labels) {
  draw(logits, key, labels);
}

}  // namespace dkfac::nn::cpu
