#include "dkfac/nn/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dkfac/core/error.h"

#include "nn/cpu/parallel.h"
#include "nn/cpu/storage.h"
#include "nn/dtype.h"

namespace dkfac::nn {
namespace {

void check_tensors(ConstTensorView logits, double scale, ConstTensorView grad) {
  DKFAC_CHECK(logits.ndim() == 2 && logits.is_contiguous(), "[softmax_cross_entropy] logits are ",
              logits.shape(), "; they must be [n, classes] without gaps");
  DKFAC_CHECK(logits.dim(1) > 0, "[softmax_cross_entropy] logits ", logits.shape(),
              " have no classes");
  DKFAC_CHECK(!logits.device().is_cuda(), "[softmax_cross_entropy] logits are on ", logits.device(),
              "; copy them to the host first");
  DKFAC_CHECK(std::isfinite(scale), "[softmax_cross_entropy] scale is ", scale,
              "; it must be finite");
  DKFAC_CHECK(grad.empty() || (grad.shape() == logits.shape() && grad.dtype() == logits.dtype() &&
                               grad.is_contiguous() && !grad.device().is_cuda()),
              "[softmax_cross_entropy] grad is ", grad.dtype(), " ", grad.shape(), "; it must be ",
              logits.dtype(), " ", logits.shape(), " without gaps");
}

/// rows: [n, classes] of logits or targets.
void check_labels(const char* operation, const Shape& rows, std::span<const std::int32_t> labels,
                  double smoothing) {
  DKFAC_CHECK(static_cast<std::int64_t>(labels.size()) == rows[0], "[", operation, "] there are ",
              labels.size(), " labels for rows ", rows, "; one per row is needed");
  DKFAC_CHECK(smoothing >= 0 && smoothing <= 1, "[", operation, "] smoothing is ", smoothing,
              "; it must be in [0, 1]");
  for (std::size_t i = 0; i < labels.size(); ++i) {
    DKFAC_CHECK(labels[i] >= 0 && labels[i] < rows[1], "[", operation, "] label ", labels[i],
                " of sample ", i, " is not in [0, ", rows[1], "); check the number of classes");
  }
}

void check_targets(ConstTensorView logits, ConstTensorView targets) {
  DKFAC_CHECK(
      targets.shape() == logits.shape() && targets.is_contiguous() && !targets.device().is_cuda(),
      "[softmax_cross_entropy] targets are ", targets.shape(), "; they must be ", logits.shape(),
      " without gaps, in host memory");
  for_dtype(targets.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* row = targets.data<T>();
    for (std::int64_t i = 0; i < targets.dim(0); ++i, row += targets.dim(1)) {
      constexpr double kTolerance = 1e-3;  // 16-bit sources round each entry.
      double sum = 0, least = 0;
      for (std::int64_t k = 0; k < targets.dim(1); ++k) {
        sum += static_cast<double>(row[k]);
        least = std::min(least, static_cast<double>(row[k]));
      }
      DKFAC_CHECK(least >= 0 && std::abs(sum - 1) <= kTolerance,
                  "[softmax_cross_entropy] the targets of sample ", i, " sum to ", sum,
                  " and the least is ", least, "; they must be >= 0 with sum 1");
    }
  });
}

/// Index of the first largest element; -1 when one of them is NaN.
template <class T>
std::int64_t first_largest(const T* x, std::int64_t count) {
  std::int64_t best = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    if (cpu::load(x[k]) != cpu::load(x[k])) return -1;
    if (cpu::load(x[k]) > cpu::load(x[best])) best = k;
  }
  return best;
}

/// A label softened by smoothing. of(k): the target of class k.
struct Smoothed {
  std::int64_t label;
  double hit, elsewhere;
  [[nodiscard]] double of(std::int64_t k) const { return k == label ? hit : elsewhere; }
};

Smoothed smoothed(std::int32_t label, double smoothing, std::int64_t classes) {
  const double elsewhere = smoothing / static_cast<double>(classes);
  return {label, 1.0 - smoothing + elsewhere, elsewhere};
}

template <class S>
struct Soft {
  std::int64_t label;
  const S* row;
  [[nodiscard]] double of(std::int64_t k) const { return static_cast<double>(row[k]); }
};

/// Loss of one sample; its gradient goes to `grad` unless that is null.
template <class T, class Target>
double sample_loss(const T* x, std::int64_t classes, const Target& target, std::int64_t largest,
                   double scale, T* grad) {
  if (largest < 0) {
    const auto nan = std::numeric_limits<cpu::Computed<T>>::quiet_NaN();
    if (grad != nullptr) std::fill_n(grad, classes, cpu::store<T>(nan));
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto value = [&](std::int64_t k) { return static_cast<double>(cpu::load(x[k])); };
  const double top = value(largest);
  double sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(value(k) - top);
  const double log_sum = std::log(sum);
  double loss = 0;
  for (std::int64_t k = 0; k < classes; ++k) {
    const double log_p = value(k) - top - log_sum, t = target.of(k);
    if (t != 0) loss -= t * log_p;  // A logit of -infinity costs nothing where nothing is expected.
    if (grad == nullptr) continue;
    grad[k] = cpu::store<T>(static_cast<cpu::Computed<T>>(scale * (std::exp(log_p) - t)));
  }
  return loss;
}

/// Losses of all samples. target(i) gives what sample i should be.
template <class T, class MakeTarget>
LossSum batch_loss(Context& ctx, ConstTensorView logits, const MakeTarget& target, double scale,
                   TensorView grad) {
  const std::int64_t n = logits.dim(0), classes = logits.dim(1);
  Scratch scratch(ctx);
  // Per sample first, summed in order afterwards: the same bits for any number of threads.
  double* losses = scratch.take(Shape{n}, DType::f64).data<double>();
  auto* correct = scratch.take(Shape{n}, DType::i32).data<std::int32_t>();
  const T* x = logits.data<T>();
  T* dx = grad.empty() ? nullptr : grad.data<T>();
  cpu::parallel_for(n, cpu::grain_of(16 * classes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto wanted = target(i);
      const std::int64_t largest = first_largest(x + i * classes, classes);
      correct[i] = largest == wanted.label ? 1 : 0;
      losses[i] = sample_loss(x + i * classes, classes, wanted, largest, scale,
                              dx == nullptr ? nullptr : dx + i * classes);
    }
  });
  LossSum total;
  for (std::int64_t i = 0; i < n; ++i) {
    total.loss += losses[i];
    total.correct += correct[i];
  }
  return total;
}

}  // namespace

LossSum softmax_cross_entropy(Context& ctx, ConstTensorView logits,
                              std::span<const std::int32_t> labels, double smoothing, double scale,
                              TensorView grad) {
  check_tensors(logits, scale, grad);
  check_labels("softmax_cross_entropy", logits.shape(), labels, smoothing);
  const auto target = [&](std::int64_t i) {
    return smoothed(labels[static_cast<std::size_t>(i)], smoothing, logits.dim(1));
  };
  return cpu::for_storage(logits.dtype(), [&](auto t) {
    return batch_loss<decltype(t)>(ctx, logits, target, scale, grad);
  });
}

LossSum softmax_cross_entropy(Context& ctx, ConstTensorView logits, ConstTensorView targets,
                              double scale, TensorView grad) {
  check_tensors(logits, scale, grad);
  check_targets(logits, targets);
  const std::int64_t classes = logits.dim(1);
  return for_dtype(targets.dtype(), [&](auto s) {
    using S = decltype(s);
    const S* rows = targets.data<S>();
    const auto target = [&](std::int64_t i) {
      const S* row = rows + i * classes;
      return Soft<S>{first_largest(row, classes), row};
    };
    return cpu::for_storage(logits.dtype(), [&](auto t) {
      return batch_loss<decltype(t)>(ctx, logits, target, scale, grad);
    });
  });
}

void soft_targets(std::span<const std::int32_t> labels, double smoothing, TensorView targets) {
  DKFAC_CHECK(targets.ndim() == 2 && targets.dim(1) > 0 && targets.is_contiguous() &&
                  !targets.device().is_cuda(),
              "[soft_targets] targets are ", targets.shape(),
              "; they must be [n, classes] without gaps, in host memory");
  check_labels("soft_targets", targets.shape(), labels, smoothing);
  const std::int64_t classes = targets.dim(1);
  for_dtype(targets.dtype(), [&](auto t) {
    using T = decltype(t);
    T* row = targets.data<T>();
    for (const std::int32_t label : labels) {
      const Smoothed wanted = smoothed(label, smoothing, classes);
      for (std::int64_t k = 0; k < classes; ++k) row[k] = static_cast<T>(wanted.of(k));
      row += classes;
    }
  });
}

}  // namespace dkfac::nn
