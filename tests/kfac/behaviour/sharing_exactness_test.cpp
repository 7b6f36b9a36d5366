#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/statistics.h"

#include "support/both_backends.h"
#include "support/damped_solve.h"
#include "support/fisher.h"
#include "support/tiny_net.h"

// Where K-FAC with shared weights is exact (Eschenhagen et al. 2023): a deep linear net applied at
// every position, with squared loss. `expand` is exact when every position has its own loss,
// `reduce` when the loss is of the mean over positions; each is wrong in the other case.
namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothBackends;

constexpr std::int64_t kSamples = 7, kPositions = 4;

enum class LossOf { positions, mean };

/// What the library is fed with for one layer, and the layer's explicit Fisher block.
struct SharedLayer {
  Matrix inputs;     ///< [samples * positions, in]
  Matrix gradients;  ///< [samples * classes * positions, out]
  Matrix fisher;
};

std::vector<SharedLayer> record_shared(const TinyNet& net, const Matrix& x, LossOf loss) {
  const std::int64_t classes = net.weights.back().rows;
  const double share = loss == LossOf::mean ? 1.0 / static_cast<double>(kPositions) : 1;
  std::vector<SharedLayer> layers;
  for (const Matrix& w : net.weights)
    layers.push_back({Matrix(x.rows, w.cols - 1), Matrix(x.rows * classes, w.rows),
                      Matrix(w.rows * w.cols, w.rows * w.cols)});
  for (std::int64_t n = 0; n < kSamples; ++n)
    for (std::int64_t k = 0; k < classes; ++k) {
      std::vector<Vector> sums(layers.size());  // The sample's gradient, over positions.
      for (std::int64_t t = 0; t < kPositions; ++t) {
        const std::vector<Vector> inputs = net.forward(x.row(n * kPositions + t));
        Vector unit(static_cast<std::size_t>(classes));
        unit[static_cast<std::size_t>(k)] = share;
        const std::vector<Trace> traces = net.backward(inputs, unit);
        for (std::size_t l = 0; l < layers.size(); ++l) {
          const auto& [a, g] = traces[l];
          SharedLayer& layer = layers[l];
          std::copy(a.begin(), a.end() - 1,
                    layer.inputs.v.begin() + (n * kPositions + t) * layer.inputs.cols);
          std::copy(g.begin(), g.end(),
                    layer.gradients.v.begin() +
                        ((n * classes + k) * kPositions + t) * layer.gradients.cols);
          const Vector part = outer(g, a);
          if (loss == LossOf::positions) add_outer(layer.fisher, part, 1.0 / kSamples);
          sums[l].resize(part.size());
          for (std::size_t i = 0; i < part.size(); ++i) sums[l][i] += part[i];
        }
      }
      if (loss == LossOf::positions) continue;
      for (std::size_t l = 0; l < layers.size(); ++l)
        add_outer(layers[l].fisher, sums[l], 1.0 / kSamples);
    }
  return layers;
}

class SharingExactness : public BothBackends {
 protected:
  /// The largest relative distance over layers between G (x) A and the Fisher block.
  double error(LossOf loss, WeightSharing sharing) {
    Random random(60);
    const TinyNet net = TinyNet::random({3, 5, 4, 2}, Activation::linear, random);
    const Matrix x = random_matrix(kSamples * kPositions, 3, random);
    double worst = 0;
    for (const SharedLayer& layer : record_shared(net, x, loss)) {
      const LinearSpec spec{.in = layer.inputs.cols, .out = layer.gradients.cols};
      const std::int64_t d = a_dim(spec), rows = layer.gradients.rows / kPositions;
      Tensor a = Tensor::zeros(ctx, {d, d}, DType::f64);
      Tensor g = Tensor::zeros(ctx, {spec.out, spec.out}, DType::f64);
      const Operand operand{DType::f64, 1};
      compute_a(ctx, spec,
                {.data = layer.inputs.view().reshape({kSamples, kPositions, spec.in}),
                 .global_batch = kSamples,
                 .operand = operand,
                 .sharing = sharing},
                0, a);
      compute_g(ctx, spec,
                {.data = layer.gradients.view().reshape({rows, kPositions, spec.out}),
                 .global_batch = kSamples,
                 .operand = operand,
                 .sharing = sharing},
                0, g);
      const Matrix product = kronecker(symmetric(ctx, g), symmetric(ctx, a));
      worst = std::max(worst, relative_norm(product.v, layer.fisher.v));
    }
    return worst;
  }
};
DKFAC_BOTH_BACKENDS(SharingExactness);

TEST_P(SharingExactness, ExpandIsExactWhereEveryPositionHasItsLoss) {
  EXPECT_LE(error(LossOf::positions, WeightSharing::expand), 1e-12);
  EXPECT_GT(error(LossOf::positions, WeightSharing::reduce), 0.1);  // control
}

TEST_P(SharingExactness, ReduceIsExactWhereTheLossSeesTheMean) {
  EXPECT_LE(error(LossOf::mean, WeightSharing::reduce), 1e-12);
  EXPECT_GT(error(LossOf::mean, WeightSharing::expand), 0.1);  // control
}

}  // namespace
}  // namespace dkfac::kfac
