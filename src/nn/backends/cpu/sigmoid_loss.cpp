#include <algorithm>

#include "nn/backends/backend_loss.h"
#include "nn/backends/cpu/parallel.h"
#include "nn/backends/dtype.h"
#include "nn/backends/sigmoid_terms.h"
#include "vectorized.h"

namespace dkfac::nn::cpu {
namespace {

constexpr std::int64_t kBlock = 256;  ///< Outputs whose terms are kept until they are added.

/// A row, or nothing of it where a pointer is null.
template <class T>
struct SigmoidRow {
  const T *outputs, *targets;
  T scale;
  T* grad;
};

template <class T>
void write_grad(const SigmoidRow<T>& row, std::int64_t begin, std::int64_t end) {
  dkfac::cpu::vectorized([=] {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i)
      row.grad[i] = row.scale * sigmoid_terms(row.outputs[i], row.targets[i]).residual;
  });
}

/// Adds the losses and the entropies of the targets to sums[2]; the terms in T, the sums in f64.
template <class T>
void add_terms(const SigmoidRow<T>& row, std::int64_t begin, std::int64_t end, double* sums) {
  T losses[kBlock], entropies[kBlock];
  T *loss = losses, *entropy = entropies;
  dkfac::cpu::vectorized([=] {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) {
      loss[i - begin] = sigmoid_terms(row.outputs[i], row.targets[i]).loss;
      entropy[i - begin] = target_entropy(row.targets[i]);
    }
  });
  for (std::int64_t i = 0; i < end - begin; ++i) {
    sums[0] += static_cast<double>(losses[i]);
    sums[1] += static_cast<double>(entropies[i]);
  }
}

}  // namespace

void sigmoid_loss(Context& ctx, ConstTensorView outputs, ConstTensorView targets, double scale,
                  TensorView grad, TensorView sums) {
  const std::int64_t n = outputs.dim(0), count = outputs.dim(1);
  Scratch scratch(ctx);
  // Summed per sample and then in order: bitwise identical for any number of threads.
  double* parts = scratch.take(Shape{n, 2}, DType::f64).data<double>();
  std::fill_n(parts, 2 * n, 0.0);
  visit_computing(outputs.dtype(), [&]<class T>(Type<T>) {
    T* const dz = grad.empty() ? nullptr : grad.data<T>();
    parallel_for(n, grain_of(8 * count), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        const SigmoidRow<T> row{outputs.data<T>() + r * count, targets.data<T>() + r * count,
                                static_cast<T>(scale), dz == nullptr ? nullptr : dz + r * count};
        if (dz != nullptr) write_grad(row, 0, count);
        if (sums.empty()) continue;
        for (std::int64_t i = 0; i < count; i += kBlock)
          add_terms(row, i, std::min(i + kBlock, count), parts + 2 * r);
      }
    });
  });
  if (sums.empty()) return;
  for (std::int64_t r = 0; r < n; ++r)
    for (int k = 0; k < 2; ++k) sums.data<double>()[k] += parts[2 * r + k];
}

}  // namespace dkfac::nn::cpu
