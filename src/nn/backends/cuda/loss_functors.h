#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/reduce_ops.h"
#include "core/shared/element.h"
#include "core/shared/keyed_random.h"
#include "nn/backends/sample_choice.h"
#include "nn/backends/sigmoid_terms.h"
#include "nn/backends/smoothing.h"

/// Functors of loss.cu, all in f64. A row of logits is read twice: once for its maximum and the sum
/// of its exponentials, in one reduction, and once for loss and gradient.
namespace dkfac::nn::cuda {

using dkfac::cuda::AddPairs;
using dkfac::cuda::LoadEach;
using dkfac::cuda::rounded;
using dkfac::cuda::StoreEach;
using dkfac::cuda::SumPair;
using dkfac::cuda::widened;

/// The largest of some numbers and the first position that has it; NaN wins.
struct Largest {
  double value;
  std::int64_t place;

  [[nodiscard]] static DKFAC_HD Largest none() {
    return {-std::numeric_limits<double>::infinity(), std::numeric_limits<std::int64_t>::max()};
  }
  [[nodiscard]] static DKFAC_HD Largest of(const Largest& a, const Largest& b) {
    if (a.value == b.value) return {a.value, a.place < b.place ? a.place : b.place};
    return a.value > b.value || a.value != a.value ? a : b;
  }
};

/// Partial state of some classes of a row.
struct RowState {
  Largest logit;
  double sum;  ///< Sum of exp(logit - the largest one).
  Largest target;
  double target_sum;  ///< NaN when a target is negative.
};

/// Returns exp(value - top), or 1 where the two are equal infinities.
[[nodiscard]] DKFAC_HD inline double relative_exp(double value, double top) {
  return value == top ? 1.0 : std::exp(value - top);
}

struct MergeRows {
  DKFAC_HD RowState identity() const { return {Largest::none(), 0, Largest::none(), 0}; }
  DKFAC_HD RowState operator()(const RowState& a, const RowState& b) const {
    const Largest logit = Largest::of(a.logit, b.logit);
    return {logit,
            a.sum * relative_exp(a.logit.value, logit.value) +
                b.sum * relative_exp(b.logit.value, logit.value),
            Largest::of(a.target, b.target), a.target_sum + b.target_sum};
  }
};

/// A label per row, softened by smoothing.
struct LabelTargets {
  const std::int32_t* labels;
  std::int64_t classes;
  double hit, elsewhere;

  DKFAC_HD void note(std::int64_t, std::int64_t, RowState&) const {}
  DKFAC_HD bool valid(std::int64_t row) const { return labels[row] >= 0 && labels[row] < classes; }
  DKFAC_HD bool valid(std::int64_t row, const RowState&) const { return valid(row); }
  DKFAC_HD std::int64_t label(std::int64_t row, const RowState&) const { return labels[row]; }
  DKFAC_HD double of(std::int64_t row, std::int64_t k) const {
    return k == labels[row] ? hit : elsewhere;
  }
};

[[nodiscard]] inline LabelTargets label_targets(ConstTensorView labels, double smoothing,
                                                std::int64_t classes) {
  const SmoothedTargets t = smoothed_targets(smoothing, classes);
  return {labels.data<std::int32_t>(), classes, t.hit, t.elsewhere};
}

/// A distribution per row.
template <class S>
struct SoftTargets {
  const S* rows;
  std::int64_t classes;
  double tolerance;  ///< Tolerance around a sum of 1.

  DKFAC_HD void note(std::int64_t row, std::int64_t k, RowState& state) const {
    const double t = of(row, k);
    state.target = {t, k};
    state.target_sum = t >= 0 ? t : std::numeric_limits<double>::quiet_NaN();
  }
  DKFAC_HD bool valid(std::int64_t, const RowState& state) const {
    return std::abs(state.target_sum - 1) <= tolerance;
  }
  DKFAC_HD std::int64_t label(std::int64_t, const RowState& state) const {
    return state.target.place;
  }
  DKFAC_HD double of(std::int64_t row, std::int64_t k) const {
    return static_cast<double>(rows[row * classes + k]);
  }
};

template <class T, class Targets>
struct LogitState {
  const T* logits;
  std::int64_t classes;
  Targets targets;
  DKFAC_HD RowState operator()(std::int64_t row, std::int64_t k) const {
    RowState out{{widened<double>(logits[row * classes + k]), k}, 1, Largest::none(), 0};
    targets.note(row, k, out);
    return out;
  }
};

/// Inputs of a row for the second pass; NaN where the row has no loss.
struct RowScalars {
  double* top;
  double* log_sum;
  double* correct;
};

template <class Targets>
struct StoreRow {
  RowScalars rows;
  Targets targets;
  DKFAC_HD void operator()(std::int64_t row, const RowState& state) const {
    const double top = state.logit.value;
    const bool valid = targets.valid(row, state);
    const bool good = valid && top < std::numeric_limits<double>::infinity();
    rows.top[row] = good ? top : std::numeric_limits<double>::quiet_NaN();
    rows.log_sum[row] = std::log(state.sum);
    const bool hit = valid && top == top && state.logit.place == targets.label(row, state);
    rows.correct[row] = hit ? 1.0 : 0.0;
  }
};

/// Computes the loss of a class and writes its gradient, unless grad is null.
template <class T, class Targets>
struct ClassLoss {
  const T* logits;
  std::int64_t classes;
  Targets targets;
  RowScalars rows;
  double scale;
  T* grad;
  DKFAC_HD double operator()(std::int64_t row, std::int64_t k) const {
    const std::int64_t i = row * classes + k;
    const double log_p = widened<double>(logits[i]) - rows.top[row] - rows.log_sum[row];
    const double t = targets.of(row, k);
    if (grad != nullptr) {
      const double g = scale * (std::exp(log_p) - t);
      // 16 bits are rounded from f32, as on the host.
      if constexpr (std::is_same_v<T, double>)
        grad[i] = g;
      else
        grad[i] = rounded<T>(static_cast<float>(g));
    }
    // A logit of -infinity adds no loss where the target is 0; NaN always counts.
    return t != 0 || log_p != log_p ? -(t * log_p) : 0.0;
  }
};

/// Loss and correctness of a sample.
struct LoadPair {
  const double* losses;
  const double* correct;
  DKFAC_HD SumPair operator()(std::int64_t, std::int64_t row) const {
    return {losses[row], correct[row]};
  }
};
struct AddToSums {
  double* sums;
  DKFAC_HD void operator()(std::int64_t, const SumPair& total) const {
    sums[0] += total.first;
    sums[1] += total.second;
  }
};

/// Returns 1 where class k of a row precedes its label when the row is sorted; infinity where that
/// is undefined.
template <class T>
struct BeforeLabel {
  const T* logits;
  const std::int32_t* labels;
  std::int64_t classes;
  DKFAC_HD double operator()(std::int64_t row, std::int64_t k) const {
    const std::int64_t label = labels[row];
    const double other = element::load<double>(logits[row * classes + k]);
    if (label < 0 || label >= classes || other != other)
      return std::numeric_limits<double>::infinity();
    const double own = element::load<double>(logits[row * classes + label]);
    return other > own || (other == own && k < label) ? 1.0 : 0.0;
  }
};
/// Stores whether fewer than `bound` classes precede.
struct StoreInTop {
  double bound;
  double* hits;
  DKFAC_HD void operator()(std::int64_t row, double before) const {
    hits[row] = before < bound ? 1.0 : 0.0;
  }
};
struct AddToCount {
  double* count;
  DKFAC_HD void operator()(std::int64_t, double hits) const { *count += hits; }
};

/// targets[row,k] of labels.
template <class S>
struct SoftenLabels {
  LabelTargets labels;
  S* targets;
  DKFAC_HD void operator()(std::int64_t row, std::int64_t k) const {
    targets[row * labels.classes + k] =
        labels.valid(row) ? static_cast<S>(labels.of(row, k)) : std::numeric_limits<S>::quiet_NaN();
  }
};

/// Draws the class in whose interval `u` of [0, 1) falls when [0, 1) is divided by the
/// probabilities in order; 0 for a row with NaN or +infinity.
template <class T>
[[nodiscard]] DKFAC_HD inline std::int32_t class_at(const T* x, std::int64_t classes, double u) {
  double top = widened<double>(x[0]);
  for (std::int64_t k = 1; k < classes; ++k) {
    const double value = widened<double>(x[k]);
    top = top < value ? value : top;
  }
  double sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(widened<double>(x[k]) - top);
  if (!(sum <= std::numeric_limits<double>::max())) return 0;
  // These sums have the order of the first pass, so the last one equals `sum` and the search ends.
  const double wanted = u * sum;
  double below = 0;
  std::int64_t k = 0;
  for (; k + 1 < classes; ++k) {
    below += std::exp(widened<double>(x[k]) - top);
    if (wanted < below) break;
  }
  // u * sum may round up to sum; a class with probability 0 is never drawn.
  while (k > 0 && std::exp(widened<double>(x[k]) - top) == 0) --k;
  return static_cast<std::int32_t>(k);
}

template <class T>
struct DrawLabel {
  const T* logits;
  std::int64_t classes;
  SampleKey key;
  std::int32_t* labels;
  DKFAC_HD void operator()(std::int64_t row) const {
    const double u = keyed_stream(key, Draw::label, row).uniform();
    labels[row] = class_at(logits + row * classes, classes, u);
  }
};

struct AddNormal {
  DKFAC_HD double operator()(double output, PhiloxStream& random) const {
    return output + normal_of(random);
  }
};
struct DrawBit {
  DKFAC_HD double operator()(double output, PhiloxStream& random) const {
    return random.uniform() < 1 / (1 + std::exp(-output)) ? 1.0 : 0.0;
  }
};
/// Draws a target for every output of a row.
template <class T, class Rule>
struct DrawTargets {
  const T* outputs;
  std::int64_t count;  ///< Of a row.
  SampleKey key;
  T* targets;
  DKFAC_HD void operator()(std::int64_t row) const {
    PhiloxStream random = keyed_stream(key, Draw::label, row);
    for (std::int64_t i = row * count; i < (row + 1) * count; ++i)
      targets[i] = static_cast<T>(Rule{}(static_cast<double>(outputs[i]), random));
  }
};

/// hv = H v of a row of softmax cross-entropy; hv may be v.
template <class T>
struct SoftmaxCurvature {
  const T *logits, *v;
  std::int64_t classes;
  T* hv;
  DKFAC_HD void operator()(std::int64_t row) const {
    const T *x = logits + row * classes, *from = v + row * classes;
    double top = static_cast<double>(x[0]), sum = 0, mean = 0;
    for (std::int64_t k = 1; k < classes; ++k)
      if (static_cast<double>(x[k]) > top) top = static_cast<double>(x[k]);
    for (std::int64_t k = 0; k < classes; ++k) {
      const double weight = std::exp(static_cast<double>(x[k]) - top);
      sum += weight;
      mean += weight * static_cast<double>(from[k]);
    }
    mean /= sum;
    for (std::int64_t k = 0; k < classes; ++k)
      hv[row * classes + k] = static_cast<T>(std::exp(static_cast<double>(x[k]) - top) / sum *
                                             (static_cast<double>(from[k]) - mean));
  }
};

/// The same of one output of sigmoid cross-entropy.
template <class T>
struct SigmoidCurvature {
  const T *logits, *v;
  T* hv;
  DKFAC_HD void operator()(std::int64_t i) const {
    const double small = std::exp(-std::abs(static_cast<double>(logits[i])));
    hv[i] = static_cast<T>(small / ((1 + small) * (1 + small)) * static_cast<double>(v[i]));
  }
};

/// Computes the terms of an output and writes its gradient, unless grad is null.
template <class T>
struct SigmoidLoss {
  const T* outputs;
  const T* targets;
  std::int64_t count;  ///< Of a row.
  T scale;
  T* grad;
  DKFAC_HD SumPair operator()(std::int64_t row, std::int64_t k) const {
    const std::int64_t i = row * count + k;
    const SigmoidTerms<T> terms = sigmoid_terms(outputs[i], targets[i]);
    if (grad != nullptr) grad[i] = scale * terms.residual;
    return {static_cast<double>(terms.loss), static_cast<double>(target_entropy(targets[i]))};
  }
};

}  // namespace dkfac::nn::cuda
