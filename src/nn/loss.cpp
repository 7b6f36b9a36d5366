#include "dkfac/nn/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dkfac/core/error.h"

#include "nn/cpu/parallel.h"
#include "nn/dtype.h"

namespace dkfac::nn {
namespace {

void check_arguments(ConstTensorView logits, std::span<const std::int32_t> labels, double smoothing,
                     double scale, ConstTensorView grad) {
  DKFAC_CHECK(logits.ndim() == 2 && logits.is_contiguous(), "[softmax_cross_entropy] logits are ",
              logits.shape(), "; they must be [n, classes] without gaps");
  DKFAC_CHECK(logits.dim(1) > 0, "[softmax_cross_entropy] logits ", logits.shape(),
              " have no classes");
  DKFAC_CHECK(!logits.device().is_cuda(), "[softmax_cross_entropy] logits are on ", logits.device(),
              "; copy them to the host first");
  DKFAC_CHECK(static_cast<std::int64_t>(labels.size()) == logits.dim(0),
              "[softmax_cross_entropy] there are ", labels.size(), " labels for logits ",
              logits.shape(), "; one per row is needed");
  DKFAC_CHECK(smoothing >= 0 && smoothing <= 1, "[softmax_cross_entropy] smoothing is ", smoothing,
              "; it must be in [0, 1]");
  DKFAC_CHECK(std::isfinite(scale), "[softmax_cross_entropy] scale is ", scale,
              "; it must be finite");
  DKFAC_CHECK(grad.empty() || (grad.shape() == logits.shape() && grad.dtype() == logits.dtype() &&
                               grad.is_contiguous() && !grad.device().is_cuda()),
              "[softmax_cross_entropy] grad is ", grad.dtype(), " ", grad.shape(), "; it must be ",
              logits.dtype(), " ", logits.shape(), " without gaps");
  for (std::size_t i = 0; i < labels.size(); ++i) {
    DKFAC_CHECK(labels[i] >= 0 && labels[i] < logits.dim(1), "[softmax_cross_entropy] label ",
                labels[i], " of sample ", i, " is not in [0, ", logits.dim(1),
                "); check the number of classes");
  }
}

/// Index of the first largest element; -1 when one of them is NaN.
template <class T>
std::int64_t first_largest(const T* x, std::int64_t count) {
  std::int64_t best = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    if (x[k] != x[k]) return -1;
    if (x[k] > x[best]) best = k;
  }
  return best;
}

struct Sample {
  double smoothing;
  double scale;
  std::int64_t classes;
};

/// Loss of one sample; its gradient goes to `grad` unless that is null.
template <class T>
double sample_loss(const Sample& s, const T* x, std::int64_t label, std::int64_t largest, T* grad) {
  if (largest < 0) {
    if (grad != nullptr) std::fill_n(grad, s.classes, std::numeric_limits<T>::quiet_NaN());
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto top = static_cast<double>(x[largest]);
  double sum = 0, shifted = 0;
  for (std::int64_t k = 0; k < s.classes; ++k) {
    const double z = static_cast<double>(x[k]) - top;
    sum += std::exp(z);
    shifted += z;
  }
  const double log_sum = std::log(sum);
  const auto classes = static_cast<double>(s.classes);
  if (grad != nullptr) {
    for (std::int64_t k = 0; k < s.classes; ++k) {
      const double p = std::exp(static_cast<double>(x[k]) - top - log_sum);
      const double target = (k == label ? 1.0 - s.smoothing : 0.0) + s.smoothing / classes;
      grad[k] = static_cast<T>(s.scale * (p - target));
    }
  }
  const double of_label = log_sum - (static_cast<double>(x[label]) - top);
  if (s.smoothing == 0.0) return of_label;  // A logit of -infinity elsewhere costs nothing then.
  return (1.0 - s.smoothing) * of_label + s.smoothing * (log_sum - shifted / classes);
}

}  // namespace

LossSum softmax_cross_entropy(Context& ctx, ConstTensorView logits,
                              std::span<const std::int32_t> labels, double smoothing, double scale,
                              TensorView grad) {
  check_arguments(logits, labels, smoothing, scale, grad);
  const std::int64_t n = logits.dim(0);
  Scratch scratch(ctx);
  // Per sample first, summed in order afterwards: the same bits for any number of threads.
  double* losses = scratch.take(Shape{n}, DType::f64).data<double>();
  auto* correct = scratch.take(Shape{n}, DType::i32).data<std::int32_t>();
  for_dtype(logits.dtype(), [&](auto t) {
    using T = decltype(t);
    const Sample sample{smoothing, scale, logits.dim(1)};
    const T* x = logits.data<T>();
    T* dx = grad.empty() ? nullptr : grad.data<T>();
    cpu::parallel_for(
        n, cpu::grain_of(16 * sample.classes), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t label = labels[static_cast<std::size_t>(i)];
            const std::int64_t largest = first_largest(x + i * sample.classes, sample.classes);
            correct[i] = largest == label ? 1 : 0;
            losses[i] = sample_loss(sample, x + i * sample.classes, label, largest,
                                    dx == nullptr ? nullptr : dx + i * sample.classes);
          }
        });
  });
  LossSum total;
  for (std::int64_t i = 0; i < n; ++i) {
    total.loss += losses[i];
    total.correct += correct[i];
  }
  return total;
}

}  // namespace dkfac::nn
