#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/preconditioner.h"

#include "kfac/each_layout.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/refresh.h"
#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/naive_conv.h"
#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/not_finite.h"

// Diagonal blocks of a factor against dense matrices whose other elements are set to zero.
namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothBackends;
using testing::eps;
using testing::near;

constexpr double kLambda = 0.02;
constexpr std::int64_t kBatch = 6;

/// The largest divisor of n up to `most`, at least 1.
std::int64_t whole_channels(std::int64_t n, std::int64_t most) {
  std::int64_t found = 1;
  for (std::int64_t i = 1; i <= std::min(n, most); ++i)
    if (n % i == 0) found = i;
  return found;
}

/// m with zeros between columns of different blocks.
Matrix masked(Matrix m, const std::vector<std::int64_t>& block_of) {
  for (std::int64_t r = 0; r < m.rows; ++r)
    for (std::int64_t c = 0; c < m.cols; ++c)
      if (block_of[static_cast<std::size_t>(r)] != block_of[static_cast<std::size_t>(c)])
        m(r, c) = 0;
  return m;
}

/// Equal parts of d columns, none wider than `width`.
std::vector<std::int64_t> equal_parts(std::int64_t d, std::int64_t width) {
  const std::int64_t count = (d + width - 1) / width, each = (d + count - 1) / count;
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < d; ++i) out.push_back(i / each);
  return out;
}

struct Sides {
  std::vector<std::int64_t> a, g;  ///< The block of each column.
};
Sides sides_of(const LinearSpec& s, std::int64_t width) {
  return {equal_parts(s.in + (s.bias ? 1 : 0), width), equal_parts(s.out, width)};
}
Sides sides_of(const Conv2dSpec& s, std::int64_t width) {
  Sides out;
  const std::int64_t each = whole_channels(s.in, width / s.window.taps());
  out.a.assign(static_cast<std::size_t>(s.in * s.window.taps()), 0);
  for (std::int64_t c = 0; c < s.in; ++c)
    for (std::int64_t kh = 0; kh < s.window.kernel_h; ++kh)
      for (std::int64_t kw = 0; kw < s.window.kernel_w; ++kw)
        out.a[static_cast<std::size_t>(weight_index(s, s.layout, c, kh, kw))] = c / each;
  if (s.bias) out.a.push_back(s.in);
  const std::int64_t outputs = whole_channels(s.out, width);
  for (std::int64_t c = 0; c < s.out; ++c) out.g.push_back(c / outputs);
  return out;
}

/// A layer with one batch, its factors by definition, and a gradient.
struct Sample {
  LayerSpec spec;
  Vector x, dy;
  Shape x_shape, dy_shape;
  Matrix a, g, v;
  Sides sides;
};

Sample sample_of(const LinearSpec& spec, std::int64_t width, std::int64_t positions) {
  Random random(7);
  const Matrix x = random_matrix(kBatch * positions, spec.in, random),
               dy = random_matrix(kBatch * positions, spec.out, random);
  const Matrix rows = spec.bias ? join_bias(x, Vector(static_cast<std::size_t>(x.rows), 1.0)) : x;
  const bool matrix = positions == 1;
  return {spec,
          x.v,
          dy.v,
          matrix ? Shape{kBatch, spec.in} : Shape{kBatch, positions, spec.in},
          matrix ? Shape{kBatch, spec.out} : Shape{kBatch, positions, spec.out},
          second_moment(rows, static_cast<double>(x.rows)),
          second_moment(dy, kBatch),
          random_matrix(spec.out, rows.cols, random),
          sides_of(spec, width)};
}

/// The sum of the rows of each sample, times `scale`.
Matrix per_sample(const Matrix& rows, double scale) {
  Matrix out(kBatch, rows.cols);
  for (std::int64_t r = 0; r < rows.rows; ++r)
    for (std::int64_t c = 0; c < rows.cols; ++c)
      out(r / (rows.rows / kBatch), c) += scale * rows(r, c);
  return out;
}

Sample sample_of(const Conv2dSpec& spec, std::int64_t width, WeightSharing sharing) {
  Random random(8);
  const Images in{kBatch, 5, 4}, out = output_of(spec, in);
  const Vector x = random_vector(in.n * in.h * in.w * spec.in, random),
               dy = random_vector(out.n * out.h * out.w * spec.out, random);
  Matrix rows = naive_patches(spec, in, x, spec.layout), outputs = naive_positions(spec, out, dy);
  if (sharing == WeightSharing::reduce) {
    rows = per_sample(rows, static_cast<double>(kBatch) / static_cast<double>(rows.rows));
    outputs = per_sample(outputs, 1);
  }
  return {spec,
          x,
          dy,
          activation_shape(spec.layout, in, spec.in),
          activation_shape(spec.layout, out, spec.out),
          second_moment(rows, static_cast<double>(rows.rows)),
          second_moment(outputs, kBatch),
          random_matrix(spec.out, rows.cols, random),
          sides_of(spec, width)};
}

CurvatureOptions options_of(int width, double damping = kLambda) {
  CurvatureOptions options = testing::natural_gradient();
  options.damping = damping;
  options.dtype = DType::f64;
  options.loss_reduction = LossReduction::sum;
  options.inverse.block_width = width;
  return options;
}

/// (G + s I)^-1 V (A + s' I)^-1 with the damping of the whole factors.
Matrix by_definition(const Matrix& a, const Matrix& g, const Matrix& v) {
  const auto split = *split_damping(kLambda, trace(a), a.rows, trace(g), g.rows);
  return multiply(multiply(inverse(plus_diagonal(g, split.g)), v),
                  inverse(plus_diagonal(a, split.a)));
}

/// The gradient of a layer, preconditioned in each of `steps` steps after a record of `batch(step)`
/// each.
class BlocksRun : public BothBackends {
 protected:
  Matrix direction(const Sample& s, const CurvatureOptions& options, int steps = 1) {
    Preconditioner all(comm::make_self(), options, Device::cpu(), {.backend = ctx.backend()});
    const LayerId id = all.add_layer("layer", s.spec);
    const bool has_bias = bias_numel(s.spec) > 0;
    Matrix weight = s.v;
    Vector bias;
    for (int step = 0; step < steps; ++step) {
      const double scale = 1 + 0.1 * step;
      Vector x = s.x, dy = s.dy;
      for (double& e : x) e *= scale;
      for (double& e : dy) e *= scale * scale;
      for (int part = 0; part < options.statistics.micro_batches; ++part) {
        all.record_input(id, view_of(x.data(), s.x_shape));
        all.record_grad_output(id, view_of(dy.data(), s.dy_shape));
      }
      weight = s.v;
      if (has_bias) std::tie(weight, bias) = split_bias(s.v);
      const std::vector<LayerGrad> grads{
          {id, weight.view().flat(),
           has_bias ? view_of(bias.data(), {bias_numel(s.spec)}) : TensorView{}}};
      EXPECT_TRUE(all.step(grads).updated);
    }
    described_ = all.describe();
    return has_bias ? join_bias(weight, bias) : weight;
  }
  /// Compares with the masked matrices, and with the unmasked as a control.
  void expect_masked(const Sample& s, int width, WeightSharing sharing = WeightSharing::expand) {
    CurvatureOptions options = options_of(width);
    options.statistics.sharing = sharing;
    const Matrix got = direction(s, options);
    const Matrix a = masked(s.a, s.sides.a), g = masked(s.g, s.sides.g);
    const auto split = *split_damping(kLambda, trace(a), a.rows, trace(g), g.rows);
    // 16 n eps times the condition of both, at most 1 + trace / shift each.
    const double condition = 2 + trace(a) / split.a + trace(g) / split.g;
    const double tolerance = 16 * static_cast<double>(a.rows + g.rows) * eps<double> * condition;
    EXPECT_TRUE(near(got.v, by_definition(a, g, s.v).v, tolerance))
        << describe(s.spec) << " in blocks of " << width;
    EXPECT_FALSE(near(got.v, by_definition(s.a, s.g, s.v).v, 1e-3)) << describe(s.spec);
  }
  std::string described_;
};
DKFAC_BOTH_BACKENDS(BlocksRun);

// Widths that divide the factors and that do not, of one column, and with the bias alone.
TEST_P(BlocksRun, LinearLayersUseTheDiagonalBlocksOfBothFactors) {
  for (const std::int64_t positions : {1, 3})
    for (const bool bias : {false, true})
      for (const int width : {1, 4, 5, 7})
        expect_masked(sample_of(LinearSpec{.in = 12, .out = 10, .bias = bias}, width, positions),
                      width);
}

// The same channels in both layouts, though columns are in another order.
TEST_P(BlocksRun, ConvolutionsAreCutByChannel) {
  const Conv2dSpec square{.in = 6, .out = 8, .window = Window::square(3, 1, 1)};
  const Conv2dSpec wide{.in = 6, .out = 8, .window = {.kernel_h = 1, .kernel_w = 2, .stride_w = 2}};
  for (const Conv2dSpec& spec : testing::in_each_layout({square, wide}))
    for (const int width : {1, 5, 20}) {
      // Not narrower than either factor: nothing is cut.
      if (a_dim(spec) <= width) continue;
      for (const WeightSharing sharing : {WeightSharing::expand, WeightSharing::reduce})
        expect_masked(sample_of(spec, width, sharing), width, sharing);
    }
}

TEST_P(BlocksRun, AWidthThatIsWideEnoughChangesNoBit) {
  for (const std::int64_t positions : {1, 3}) {
    const Sample s = sample_of(LinearSpec{.in = 12, .out = 10}, 13, positions);
    const Matrix whole = direction(s, options_of(-1));
    EXPECT_EQ(direction(s, options_of(13)).v, whole.v);
    EXPECT_NE(direction(s, options_of(12)).v, whole.v);  // Control.
  }
}

/// Samples come in pairs of opposite sign, and each has values in the columns of one block: A and G
/// are block-diagonal, also beside the bias.
Sample separated(const LinearSpec& spec, std::int64_t width) {
  Sample s = sample_of(spec, width, 1);
  const auto separate = [](Vector& x, const std::vector<std::int64_t>& block_of, std::int64_t d) {
    const std::int64_t blocks = block_of[static_cast<std::size_t>(d - 1)] + 1;
    const std::int64_t samples = std::ssize(x) / d;
    for (std::int64_t i = 0; i < samples; ++i)
      for (std::int64_t c = 0; c < d; ++c) {
        double& e = x[static_cast<std::size_t>(i * d + c)];
        if (block_of[static_cast<std::size_t>(c)] != i / 2 % blocks) e = 0;
        if (i % 2 == 1) e = -x[static_cast<std::size_t>((i - 1) * d + c)];
      }
  };
  separate(s.x, s.sides.a, spec.in);
  separate(s.dy, s.sides.g, spec.out);
  return s;
}

struct BlocksSetting {
  const char* what;
  void (*set)(CurvatureOptions&);
};

TEST_P(BlocksRun, WhatIsBlockDiagonalIsInvertedExactlyUnderEveryOption) {
  const BlocksSetting settings[] = {
      {"averages", [](auto&) {}},
      {"the latest statistic", [](auto& o) { o.statistics.new_weight = 1; }},
      {"identity", [](auto& o) { o.statistics.average_start = AverageStart::identity; }},
      {"trace", [](auto& o) { o.statistics.average_start = AverageStart::trace; }},
      {"early", [](auto& o) { o.refresh.early_refreshes = true; }},
      {"intervals",
       [](auto& o) {
         o.refresh.statistics_interval = 2;
         o.refresh.inverse_interval = 4;
       }},
      {"adaptive", [](auto& o) { o.refresh.staleness = Staleness::adaptive; }},
      {"delayed", [](auto& o) { o.refresh.delay_inverses = true; }},
      {"f16", [](auto& o) { o.statistics.operand = DType::f16; }},
      {"micro-batches", [](auto& o) { o.statistics.micro_batches = 2; }},
      {"equal traces", [](auto& o) { o.damping_split = DampingSplit::equal_traces; }},
      {"reduce", [](auto& o) { o.statistics.sharing = WeightSharing::reduce; }},
      {"wire", [](auto& o) { o.communication.statistics_wire = DType::bf16; }},
  };
  // The bias in a block with others, and alone.
  for (const std::int64_t in : {8, 9})
    for (const BlocksSetting& setting : settings) {
      const LinearSpec spec{.in = in, .out = 6};
      const Sample s = separated(spec, 3), random = sample_of(spec, 3, 1);
      CurvatureOptions blocks = options_of(3), whole = options_of(-1);
      setting.set(blocks);
      setting.set(whole);
      // 64 n eps times the condition, about 100.
      EXPECT_TRUE(
          near(direction(s, blocks, 6).v, direction(s, whole, 6).v, 64 * 15 * 100 * eps<double>))
          << setting.what;
      EXPECT_FALSE(near(direction(random, blocks, 6).v, direction(random, whole, 6).v, 1e-3));
    }
}

// A lookup table: the transpose of a Linear layer, with frequencies as A.
TEST_P(BlocksRun, AnEmbeddingIsCutAlongItsWidth) {
  constexpr std::int64_t kVocabulary = 5, kWidth = 7;
  Random random(3);
  const std::vector<std::int32_t> index{0, 3, 3, 4, 1, 0};
  const Matrix dy = random_matrix(kBatch, kWidth, random);
  const Matrix v = random_matrix(kVocabulary, kWidth, random);
  Matrix a(kVocabulary, kVocabulary);
  for (const std::int32_t i : index) a(i, i) += 1.0 / kBatch;
  const Matrix whole = second_moment(dy, kBatch), g = masked(whole, equal_parts(kWidth, 3));
  Preconditioner all(comm::make_self(), options_of(3), Device::cpu(), {.backend = ctx.backend()});
  const LayerId id = all.add_layer("table", EmbeddingSpec{kVocabulary, kWidth});
  all.record_input(id, view_of(index.data(), {kBatch}));
  all.record_grad_output(id, dy.view());
  Matrix got = v;
  const std::vector<LayerGrad> grads{{id, got.view().flat(), {}}};
  EXPECT_TRUE(all.step(grads).updated);
  // 100 n eps at a condition of some tens.
  EXPECT_TRUE(
      near(transpose(got).v, by_definition(a, g, transpose(v)).v, 100 * kWidth * 50 * eps<double>));
  EXPECT_FALSE(near(transpose(got).v, by_definition(a, whole, transpose(v)).v, 1e-3));
}

// Blocks are shown as such, padded to one width.
TEST_P(BlocksRun, ReadsAveragesAndInversesAsBlocks) {
  const Sample s = sample_of(LinearSpec{.in = 9, .out = 4}, 4, 1);
  Preconditioner all(comm::make_self(), options_of(4));
  const LayerId id = all.add_layer("layer", s.spec);
  all.record_input(id, view_of(s.x.data(), s.x_shape));
  all.record_grad_output(id, view_of(s.dy.data(), s.dy_shape));
  Matrix weight;
  Vector bias;
  std::tie(weight, bias) = split_bias(s.v);
  const std::vector<LayerGrad> grads{{id, weight.view().flat(), view_of(bias.data(), {4})}};
  EXPECT_TRUE(all.step(grads).updated);
  EXPECT_NE(all.describe().find("10 blocks of 4"), std::string::npos) << all.describe();
  const LayerFactors factors = all.read_factors(id);
  ASSERT_EQ(factors.a.average.shape(), Shape({3, 4, 4}));
  ASSERT_EQ(factors.a.inverse.shape(), Shape({3, 4, 4}));
  EXPECT_EQ(factors.g.average.shape(), Shape({4, 4}));
  const auto* average = factors.a.average.data<double>();
  for (std::int64_t block = 0; block < 3; ++block)
    for (std::int64_t r = 0; r < 4; ++r)
      for (std::int64_t c = 0; c < 4; ++c) {
        const std::int64_t i = 4 * block + r, j = 4 * block + c;
        const double expected = i < 10 && j < 10 ? s.a(i, j) : 0;
        // A sum of 6 products: 8 n eps.
        EXPECT_NEAR(average[16 * block + 4 * r + c], expected, 8 * 6 * eps<double> * trace(s.a));
      }
}

// One block that cannot be inverted keeps its last inverse, and costs no other block its new one.
TEST_P(BlocksRun, ABlockFailsAlone) {
  LinearSpec spec{.in = 6, .out = 2, .bias = false};
  const CurvatureOptions options = options_of(2);
  LayerCurvature layer = make_layer_curvature(ctx, spec, options);
  ASSERT_EQ(layer.a.groups, 3);
  const auto refresh = [&](const Vector& average) {
    std::copy(average.begin(), average.end(), layer.a.average.data<double>());
    std::fill_n(layer.g.average.data<double>(), 3, 1.0);
    layer.a.stale = true;
    layer.a.statistics = 1;
    std::vector<RefreshTask> tasks;
    add_refresh_tasks(ctx, options, layer, {.a = true, .g = false}, tasks);
    RefreshWorkers(ctx).run(tasks);
    return tasks.front().stage;
  };
  EXPECT_EQ(refresh({2, 0, 2, 2, 0, 2, 2, 0, 2}), InverseStage::damped);
  const auto* inverse = layer.a.inverse.data<double>();
  const auto* shift = layer.a.shifts.data<double>();
  const double before = inverse[4], old = shift[1];
  const auto expect_renewed = [&](double element) {
    for (const std::int64_t block : {0, 2}) {
      EXPECT_EQ(shift[block], shift[0]);
      // 1 / (element + shift), to the rounding of a few operations.
      EXPECT_NEAR(inverse[4 * block] * (element + shift[0]), 1, 8 * eps<double>);
    }
  };
  EXPECT_EQ(refresh({4, 0, 4, 1, kNan, 1, 4, 0, 4}), InverseStage::kept);
  EXPECT_EQ(layer.a.failed_group, 1);
  expect_renewed(4);
  EXPECT_EQ(inverse[4], before);
  EXPECT_EQ(shift[1], old);
  EXPECT_NE(shift[0], old);  // Control.
  // Indefinite beyond ten times the damping: the negative eigenvalue is set to 0.
  EXPECT_EQ(refresh({6, 0, 6, 1, 9, 1, 6, 0, 6}), InverseStage::clipped);
  EXPECT_EQ(layer.a.failed_group, -1);
  expect_renewed(6);
  EXPECT_EQ(shift[1], shift[0]);
}

}  // namespace
}  // namespace dkfac::kfac
