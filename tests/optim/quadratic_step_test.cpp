// Steps of K-FAC whose rates are those of the quadratic model, on a loss that is quadratic: the
// model is then exact.
#include "optim/quadratic_step.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/conjugate_gradients.h"
#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/saved_state.h"

namespace dkfac::testing {
namespace {

constexpr double kLambda = 0.1;

optim::KfacOptions quadratic_options() {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.step_length = kfac::StepLength::quadratic;
  options.curvature.dtype = DType::f64;
  options.curvature.damping = kLambda;
  options.curvature.inverse.method = kfac::InverseMethod::eigen;  // Damps products exactly.
  options.curvature.statistics.new_weight = 1;
  options.curvature.statistics.low_rank = false;
  options.curvature.refresh.statistics_interval = 100;  // The inverses stay those of step 1.
  options.curvature.refresh.inverse_interval = 100;
  return options;
}

/// Minimises w'Hw/2 - c'w over two linear layers, [3,2] and [2,3], and one without curvature, [4].
class QuadraticLoss {
 public:
  static constexpr std::size_t kCurved = 12, kPlain = 4;

  QuadraticLoss(const std::shared_ptr<comm::Communicator>& comm, const optim::KfacOptions& options,
                bool has_plain)
      : size_(has_plain ? kCurved + kPlain : kCurved),
        w_(size_),
        g_(size_),
        optimizer_(optim::make_kfac(comm, options)) {
    const auto at = [](std::vector<double>& x, std::size_t first, const Shape& shape) {
      return view_of(x.data() + first, shape);
    };
    add("fc1", LinearSpec{.in = 2, .out = 3, .bias = false},
        {at(w_, 0, {3, 2}), {}, at(g_, 0, {3, 2}), {}});
    add("fc2", LinearSpec{.in = 3, .out = 2, .bias = false},
        {at(w_, 6, {2, 3}), {}, at(g_, 6, {2, 3}), {}});
    if (has_plain) add("plain", PlainSpec{.weight = 4}, {at(w_, 12, {4}), {}, at(g_, 12, {4}), {}});
    optimizer_->prepare();
  }

  /// Whether the model adds its damping to the Hessian of the loss, or has it itself.
  bool damped = false;
  double plain_rate = 1;  ///< Factor of the gradient without curvature.
  bool broken = false;    ///< Whether the curvature is NaN.

  kfac::StepReport step(double lr = 1) {
    const Point gradient = gradient_of(w_);
    std::copy(gradient.begin(), gradient.end(), g_.begin());
    for (std::size_t i = kCurved; i < size_; ++i) g_[i] *= plain_rate;
    if (optimizer_->wants_statistics()) record();
    for (std::size_t i = ids_.size(); i-- > 0;) optimizer_->grads_ready(ids_[i]);
    optimizer_->set_curvature_along(
        [this](std::span<const ConstTensorView> directions, TensorView sums, Stream) {
          std::int64_t pair = 0;
          for (std::size_t i = 0; i < directions.size(); ++i)
            for (std::size_t j = 0; j <= i; ++j)
              sums.data<double>()[pair++] =
                  broken ? std::nan("") : curvature_of(directions[i], directions[j]);
          return std::int64_t{1};
        });
    return optimizer_->step({.lr = lr, .flags = {}});
  }
  [[nodiscard]] Point gradient_of(const Point& w) const {
    return moved_by(hessian_times(hessian(), w), -1, target());
  }
  [[nodiscard]] const Point& weights() const { return w_; }
  void set_weights(const Point& w) { std::copy(w.begin(), w.end(), w_.begin()); }
  [[nodiscard]] optim::Optimizer& optimizer() { return *optimizer_; }
  [[nodiscard]] Hessian hessian() const { return positive_hessian(size_, 1.3); }
  [[nodiscard]] Point target() const {
    Point c(size_);
    for (std::size_t i = 0; i < size_; ++i) c[i] = std::cos(static_cast<double>(i * i + 1));
    return c;
  }
  /// (G (x) A + lambda I)^-1 of the statistics that record() gives.
  [[nodiscard]] static Hessian preconditioner() {
    Hessian p(kCurved, Point(kCurved));
    const double a1[] = {2, 0.5}, g1[] = {2, 0.5, 0}, a2[] = {4.5, 0.125, 0}, g2[] = {0.5, 2};
    for (std::size_t i = 0; i < 6; ++i) {
      p[i][i] = 1 / (g1[i / 2] * a1[i % 2] + kLambda);
      p[6 + i][6 + i] = 1 / (g2[i / 3] * a2[i % 3] + kLambda);
    }
    return p;
  }

 private:
  void add(const char* name, LayerSpec spec, optim::LayerParams params) {
    ids_.push_back(optimizer_->add_layer(name, std::move(spec), params));
  }
  /// Two samples with diagonal factors: A = mean of x x', G = twice the sum of g g'.
  void record() {
    static const std::vector<double> x1{2, 0, 0, 1}, dy1{1, 0, 0, 0, 0.5, 0};
    static const std::vector<double> x2{3, 0, 0, 0, 0.5, 0}, dy2{0.5, 0, 0, 1};
    optimizer_->record_input(ids_[0], view_of(x1.data(), {2, 2}));
    optimizer_->record_input(ids_[1], view_of(x2.data(), {2, 3}));
    optimizer_->record_grad_output(ids_[1], view_of(dy2.data(), {2, 2}));
    optimizer_->record_grad_output(ids_[0], view_of(dy1.data(), {2, 3}));
  }
  [[nodiscard]] double curvature_of(ConstTensorView x, ConstTensorView y) const {
    const Point a(x.data<double>(), x.data<double>() + size_);
    const Point b(y.data<double>(), y.data<double>() + size_);
    return dot_of(a, hessian_times(hessian(), b)) - (damped ? 0 : kLambda * dot_of(a, b));
  }

  std::size_t size_;
  Point w_, g_;
  std::vector<LayerId> ids_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

/// The weights of rank 0.
Point of_first_rank(comm::Communicator& comm, Point w) {
  comm.broadcast(view_of(w.data(), {std::ssize(w)}), 0, Stream::cpu(), "compare");
  return w;
}

TEST(QuadraticStep, GivesThePreconditionedConjugateGradientsOnAnyNumberOfRanks) {
  constexpr int kSteps = 8;
  for (const double fraction : {0.0, 1.0})
    for (const int ranks : {1, 2, 4})
      comm::run_ranks(ranks, [&](auto comm) {
        optim::KfacOptions options = quadratic_options();
        options.curvature.distribution.grad_worker_fraction = fraction;
        QuadraticLoss loss(comm, options, false);
        std::vector<Point> course{loss.weights()};
        for (int k = 0; k < kSteps; ++k) {
          const kfac::StepReport report = loss.step();
          EXPECT_GT(report.model_rate, 0);
          EXPECT_LT(report.model_change, 0);
          course.push_back(loss.weights());
          EXPECT_EQ(course.back(), of_first_rank(*comm, course.back())) << k;
        }
        const auto wanted = conjugate_gradients(loss.hessian(), QuadraticLoss::preconditioner(),
                                                loss.target(), kSteps);
        EXPECT_LE(course_error(course, wanted), 1e-10);
        // Control: a model of another loss.
        QuadraticLoss other(comm, options, false);
        other.damped = true;
        std::vector<Point> without{other.weights()};
        for (int k = 0; k < kSteps; ++k) {
          (void)other.step();
          without.push_back(other.weights());
        }
        EXPECT_GT(course_error(without, wanted), 1e-3);
      });
}

TEST(QuadraticStep, MinimisesOverTheGradientOfLayersWithoutCurvatureToo) {
  for (const double l2 : {0.0, 0.3})
    comm::run_ranks(2, [&](auto comm) {
      optim::KfacOptions options = quadratic_options();
      options.weight_decay = l2;
      QuadraticLoss loss(comm, options, true);
      Point before = loss.weights();
      for (std::size_t i = 0; i < before.size(); ++i) before[i] = 0.1 * static_cast<double>(i);
      loss.set_weights(before);
      const auto gradient = [&](const Point& w) { return moved_by(loss.gradient_of(w), l2, w); };
      const Point g = gradient(before);
      const kfac::StepReport report = loss.step();
      const Point after = loss.weights(), left = gradient(after);
      // What is left of the gradient is orthogonal to both directions, which that before is not.
      Point plain(g.size()), curved(g.size());
      for (std::size_t i = 0; i < g.size(); ++i)
        (i < QuadraticLoss::kCurved ? curved : plain)[i] =
            i < QuadraticLoss::kCurved ? QuadraticLoss::preconditioner()[i][i] * g[i] : g[i];
      for (const Point& direction : {curved, plain}) {
        EXPECT_NEAR(dot_of(left, direction), 0, 1e5 * eps<double>);  // Products near 1e3.
        EXPECT_GT(std::abs(dot_of(g, direction)), 0.1);
      }
      const Point moved = moved_by(after, -1, before);
      EXPECT_NEAR(report.model_change, dot_of(g, moved) / 2, 1e5 * eps<double>);
      EXPECT_EQ(report.momentum, 0);
      EXPECT_NE(loss.step().momentum, 0);
    });
}

TEST(QuadraticStep, IsTheRateTimesTheMinimumOfTheModel) {
  QuadraticLoss whole(comm::make_self(), quadratic_options(), true);
  QuadraticLoss half(comm::make_self(), quadratic_options(), true);
  (void)whole.step();
  (void)half.step(0.5);
  for (std::size_t i = 0; i < whole.weights().size(); ++i)  // Both begin at 0.
    EXPECT_NEAR(half.weights()[i], 0.5 * whole.weights()[i], 10 * eps<double>);
}

TEST(QuadraticStep, LeavesOutDirectionsThatAreNone) {
  // Without a gradient of their own, layers without curvature do not cost the last step its rate.
  QuadraticLoss loss(comm::make_self(), quadratic_options(), true);
  loss.plain_rate = 0;
  EXPECT_EQ(loss.step().momentum, 0);
  EXPECT_NE(loss.step().momentum, 0);
  // A curvature that is no number gives no step, and the next one is a first one.
  loss.broken = true;
  const Point before = loss.weights();
  EXPECT_EQ(loss.step().model_rate, 0);
  EXPECT_EQ(loss.weights(), before);
  loss.broken = false;
  const kfac::StepReport report = loss.step();
  EXPECT_GT(report.model_rate, 0);
  EXPECT_EQ(report.momentum, 0);
}

TEST(QuadraticStep, ContinuesBitwiseFromItsState) {
  const auto ten_steps = [](bool resumed) {
    auto loss = std::make_unique<QuadraticLoss>(comm::make_self(), quadratic_options(), true);
    for (int k = 0; k < 4; ++k) (void)loss->step();
    if (resumed) {
      Saver saver;
      loss->optimizer().visit_state(saver);
      EXPECT_TRUE(saver.state.contains("fc1.last_step"));
      EXPECT_FALSE(saver.state.contains("fc1.velocity"));
      auto next = std::make_unique<QuadraticLoss>(comm::make_self(), quadratic_options(), true);
      next->set_weights(loss->weights());
      const std::vector<SavedState> ranks{saver.state};
      Loader loader(ranks, 0);
      next->optimizer().visit_state(loader);
      loss = std::move(next);
    }
    for (int k = 0; k < 3; ++k) (void)loss->step();
    return loss->weights();
  };
  EXPECT_EQ(ten_steps(true), ten_steps(false));
}

TEST(QuadraticStep, RefusesWhatDecidesTheStepOtherwise) {
  const auto refused = [](auto&& change) {
    optim::KfacOptions options = quadratic_options();
    change(options);
    EXPECT_THROW(options.validate(), InvalidArgument);
  };
  EXPECT_NO_THROW(quadratic_options().validate());
  refused([](auto& o) { o.update = optim::DirectionUpdate::adamw; });
  refused([](auto& o) { o.momentum = 0.5; });
  refused([](auto& o) { o.momentum_rule = optim::MomentumRule::constant; });
  refused([](auto& o) { o.rescale = optim::Rescale::always; });
  refused([](auto& o) { o.curvature.kl_clip = 1e-3; });
  refused([](auto& o) { o.curvature.communication.weight_wire = DType::bf16; });
  EXPECT_THROW(kfac::Preconditioner(comm::make_self(), quadratic_options().curvature),
               InvalidArgument);

  QuadraticLoss loss(comm::make_self(), quadratic_options(), true);
  (void)loss.step();
  EXPECT_THROW((void)loss.optimizer().step({.lr = 1, .flags = {}}), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
