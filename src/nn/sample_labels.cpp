#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/nn/loss.h"

#include "nn/cpu/parallel.h"
#include "nn/cpu/storage.h"
#include "nn/keyed_random.h"

namespace dkfac::nn {
namespace {

/// The class in which `u` of [0, 1) falls when [0, 1) is cut into their probabilities in order.
template <class T>
std::int32_t class_at(const T* x, std::int64_t classes, double u) {
  const auto value = [&](std::int64_t k) { return static_cast<double>(cpu::load(x[k])); };
  double top = value(0);
  for (std::int64_t k = 1; k < classes; ++k) top = std::max(top, value(k));
  double sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(value(k) - top);
  if (!std::isfinite(sum)) return 0;
  // The same sums in the same order, so that the last one is `sum` and the search ends.
  const double wanted = u * sum;
  double below = 0;
  std::int64_t k = 0;
  for (; k + 1 < classes; ++k) {
    below += std::exp(value(k) - top);
    if (wanted < below) break;
  }
  // u * sum may round up to sum; nothing is drawn that has no probability.
  while (k > 0 && std::exp(value(k) - top) == 0) --k;
  return static_cast<std::int32_t>(k);
}

}  // namespace

void sample_labels(ConstTensorView logits, SampleKey key, std::span<std::int32_t> labels) {
  DKFAC_CHECK(logits.ndim() == 2 && logits.dim(1) > 0 && logits.is_contiguous() &&
                  !logits.device().is_cuda(),
              "[sample_labels] logits are ", logits.shape(),
              "; they must be [n, classes] without gaps, in host memory");
  DKFAC_CHECK(std::ssize(labels) == logits.dim(0), "[sample_labels] there is room for ",
              labels.size(), " labels of logits ", logits.shape(), "; one per row is needed");
  check_key("sample_labels", key);
  const std::int64_t classes = logits.dim(1);
  cpu::for_storage(logits.dtype(), [&](auto t) {
    const auto* x = logits.data<decltype(t)>();
    cpu::parallel_for(
        logits.dim(0), cpu::grain_of(16 * classes), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const double u = keyed_random(key, Draw::label, i).uniform();
            labels[static_cast<std::size_t>(i)] = class_at(x + i * classes, classes, u);
          }
        });
  });
}

}  // namespace dkfac::nn
