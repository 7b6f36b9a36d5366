#include "dkfac/nn/loss.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"

#include "nn/backends/backend_loss.h"
#include "nn/backends/dtype.h"
#include "nn/backends/smoothing.h"
#include "nn/loss/output_checks.h"

namespace dkfac::nn {
namespace {

void check_logits(const char* operation, Device device, ConstTensorView logits) {
  DKFAC_CHECK(logits.ndim() == 2 && logits.dim(1) > 0 && logits.is_contiguous(), "[", operation,
              "] logits are ", logits.shape(),
              "; they must be [n, classes] without gaps, of at least one class");
  DKFAC_CHECK(logits.device() == device, "[", operation, "] logits are on ", logits.device(),
              ", the context on ", device, "; copy them there first");
}

void check_tensors(Device device, ConstTensorView logits, double scale, ConstTensorView grad) {
  check_logits("softmax_cross_entropy", device, logits);
  DKFAC_CHECK(std::isfinite(scale), "[softmax_cross_entropy] scale is ", scale,
              "; it must be finite");
  if (!grad.empty()) check_like("softmax_cross_entropy", "grad", logits, grad);
}

/// Check of the functions that return their sums on the host.
void check_on_host(ConstTensorView logits) {
  DKFAC_CHECK(!logits.device().is_cuda(), "[softmax_cross_entropy] logits are on ", logits.device(),
              "; there the sums go to a tensor: use the form with sums");
}

void check_smoothing(const char* operation, double smoothing) {
  DKFAC_CHECK(smoothing >= 0 && smoothing <= 1, "[", operation, "] smoothing is ", smoothing,
              "; it must be in [0, 1]");
}

/// Checks labels on the host; rows: [n, classes] of logits or targets.
void check_labels(const char* operation, const Shape& rows, std::span<const std::int32_t> labels,
                  double smoothing) {
  DKFAC_CHECK(static_cast<std::int64_t>(labels.size()) == rows[0], "[", operation, "] there are ",
              labels.size(), " labels for rows ", rows, "; one per row is needed");
  check_smoothing(operation, smoothing);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    DKFAC_CHECK(labels[i] >= 0 && labels[i] < rows[1], "[", operation, "] label ", labels[i],
                " of sample ", i, " is not in [0, ", rows[1], "); check the number of classes");
  }
}

/// Checks a view of labels on any device, without their values.
void check_label_view(const char* operation, Device device, const Shape& rows,
                      ConstTensorView labels) {
  DKFAC_CHECK(labels.shape() == Shape{rows[0]} && labels.dtype() == DType::i32 &&
                  labels.is_contiguous() && labels.device() == device,
              "[", operation, "] labels are ", labels.dtype(), " ", labels.shape(), " on ",
              labels.device(), "; they must be i32 [", rows[0], "] without gaps, on ", device);
}

void check_target_shape(ConstTensorView logits, ConstTensorView targets) {
  DKFAC_CHECK(targets.shape() == logits.shape() && targets.is_contiguous() &&
                  targets.device() == logits.device(),
              "[softmax_cross_entropy] targets are ", targets.shape(), " on ", targets.device(),
              "; they must be ", logits.shape(), " without gaps, on ", logits.device());
}

void check_targets(ConstTensorView logits, ConstTensorView targets) {
  check_target_shape(logits, targets);
  visit_computing(targets.dtype(), [&]<class T>(Type<T>) {
    const T* row = targets.data<T>();
    for (std::int64_t i = 0; i < targets.dim(0); ++i, row += targets.dim(1)) {
      double sum = 0, least = 0;
      for (std::int64_t k = 0; k < targets.dim(1); ++k) {
        sum += static_cast<double>(row[k]);
        least = std::min(least, static_cast<double>(row[k]));
      }
      DKFAC_CHECK(least >= 0 && std::abs(sum - 1) <= kDistributionTolerance,
                  "[softmax_cross_entropy] the targets of sample ", i, " sum to ", sum,
                  " and the least is ", least, "; they must be >= 0 with sum 1");
    }
  });
}

/// Views labels on the host.
ConstTensorView view_of_labels(std::span<const std::int32_t> labels) {
  return view_of(labels.data(), Shape{std::ssize(labels)});
}

void check_soft_targets(Device device, ConstTensorView targets) {
  DKFAC_CHECK(targets.ndim() == 2 && targets.dim(1) > 0 && targets.is_contiguous() &&
                  targets.device() == device,
              "[soft_targets] targets are ", targets.shape(), " on ", targets.device(),
              "; they must be [n, classes] without gaps, on ", device);
  DKFAC_CHECK(targets.dtype() == DType::f64 || targets.dtype() == DType::f32,
              "[soft_targets] targets are ", targets.dtype(), "; they must be f64 or f32");
}

void check_draw(Device device, ConstTensorView logits, const SampleKey& key) {
  check_logits("sample_labels", device, logits);
  check_key("sample_labels", key);
}

/// Sums on the host, as two numbers.
struct HostSums {
  double values[2] = {0, 0};
  [[nodiscard]] TensorView view() { return view_of(values, Shape{2}); }
  [[nodiscard]] LossSum total() const { return {values[0], static_cast<std::int64_t>(values[1])}; }
};

}  // namespace

LossSum softmax_cross_entropy(Context& ctx, ConstTensorView logits,
                              std::span<const std::int32_t> labels, double smoothing, double scale,
                              TensorView grad) {
  check_on_host(logits);
  check_tensors(ctx.device(), logits, scale, grad);
  check_labels("softmax_cross_entropy", logits.shape(), labels, smoothing);
  HostSums sums;
  cpu::label_loss(ctx, logits, view_of_labels(labels), smoothing, scale, grad, sums.view());
  return sums.total();
}

LossSum softmax_cross_entropy(Context& ctx, ConstTensorView logits, ConstTensorView targets,
                              double scale, TensorView grad) {
  check_on_host(logits);
  check_tensors(ctx.device(), logits, scale, grad);
  check_targets(logits, targets);
  HostSums sums;
  cpu::target_loss(ctx, logits, targets, scale, grad, sums.view());
  return sums.total();
}

void softmax_cross_entropy(Context& ctx, ConstTensorView logits, ConstTensorView labels,
                           double smoothing, double scale, TensorView grad, TensorView sums) {
  check_tensors(ctx.device(), logits, scale, grad);
  check_label_view("softmax_cross_entropy", ctx.device(), logits.shape(), labels);
  check_smoothing("softmax_cross_entropy", smoothing);
  check_sums("softmax_cross_entropy", "sums are ", ctx.device(), 2, sums);
  kernels::label_loss(ctx, logits, labels, smoothing, scale, grad, sums);
}

void soft_cross_entropy(Context& ctx, ConstTensorView logits, ConstTensorView targets, double scale,
                        TensorView grad, TensorView sums) {
  check_tensors(ctx.device(), logits, scale, grad);
  check_target_shape(logits, targets);
  check_sums("softmax_cross_entropy", "sums are ", ctx.device(), 2, sums);
  kernels::target_loss(ctx, logits, targets, scale, grad, sums);
}

void count_in_top(Context& ctx, ConstTensorView logits, ConstTensorView labels, std::int64_t k,
                  TensorView count) {
  check_logits("count_in_top", ctx.device(), logits);
  check_label_view("count_in_top", ctx.device(), logits.shape(), labels);
  DKFAC_CHECK(k >= 1, "[count_in_top] k is ", k, "; it must be at least 1");
  check_sums("count_in_top", "count is ", ctx.device(), 1, count);
  kernels::count_in_top(ctx, logits, labels, k, count);
}

void soft_targets(Context& ctx, ConstTensorView labels, double smoothing, TensorView targets) {
  check_soft_targets(ctx.device(), targets);
  check_label_view("soft_targets", ctx.device(), targets.shape(), labels);
  check_smoothing("soft_targets", smoothing);
  kernels::soften_labels(ctx, labels, smoothing, targets);
}

void soft_targets(std::span<const std::int32_t> labels, double smoothing, TensorView targets) {
  check_soft_targets(Device::cpu(), targets);
  check_labels("soft_targets", targets.shape(), labels, smoothing);
  cpu::soften(view_of_labels(labels), smoothing, targets);
}

void sample_labels(Context& ctx, ConstTensorView logits, SampleKey key, TensorView labels) {
  check_draw(ctx.device(), logits, key);
  check_label_view("sample_labels", ctx.device(), logits.shape(), labels);
  kernels::draw_labels(ctx, logits, key, labels);
}

void sample_labels(ConstTensorView logits, SampleKey key, std::span<std::int32_t> labels) {
  check_draw(Device::cpu(), logits, key);
  DKFAC_CHECK(std::ssize(labels) == logits.dim(0), "[sample_labels] there is room for ",
              labels.size(), " labels of logits ", logits.shape(), "; one per row is needed");
  cpu::draw(logits, key, view_of(labels.data(), Shape{std::ssize(labels)}));
}

}  // namespace dkfac::nn
