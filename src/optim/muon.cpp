#include <algorithm>
#include <cmath>
#include <utility>

#include "dkfac/core/ops.h"

#include "optim/adamw_moments.h"
#include "optim/first_order.h"
#include "optim/shared/muon_work.h"

namespace dkfac::optim {
namespace {

/// out = x / sqrt(|x|^2 + epsilon^2). The norm stays on the device, without a wait of the host.
void normalize(Context& ctx, double epsilon, ConstTensorView x, TensorView out) {
  Scratch scratch(ctx);
  const TensorView square = scratch.take({1, 1}, DType::f64), info = scratch.take({1}, DType::i32);
  ops::dot(ctx, x.flat(), x.flat(), square.flat());
  ops::add_diagonal(ctx, square, epsilon * epsilon);
  ops::potrf(ctx, square, info);  // Of a 1x1 matrix: its root,
  ops::potri(ctx, square, info);  // the inverse of what was there before potrf,
  ops::potrf(ctx, square, info);  // and the root of that.
  const TensorView factor = scratch.take({1, 1}, x.dtype());
  ops::cast(ctx, square, factor);
  const Shape column{x.numel(), 1};
  ops::gemm(ctx, ops::Trans::no, ops::Trans::no, 1, x.reshape(column), factor, 0,
            out.reshape(column));
}

/// next = x (a I + b x'x + c (x'x)^2), for x with at least as many rows as columns.
void iterate(Context& ctx, const NewtonSchulz& o, ConstTensorView x, TensorView next) {
  Scratch scratch(ctx);
  const Shape square{x.dim(1), x.dim(1)};
  const TensorView gram = scratch.take(square, x.dtype()), sum = scratch.take(square, x.dtype());
  ops::syrk(ctx, 1, x, 0, gram);
  ops::symmetrize(ctx, gram);
  ops::copy(ctx, gram, sum);
  ops::syrk(ctx, o.c, gram, o.b, sum);
  ops::add_diagonal(ctx, sum, o.a);
  ops::symmetrize(ctx, sum);
  ops::gemm(ctx, ops::Trans::no, ops::Trans::no, 1, x, sum, 0, next);
}

struct Muon {
  static constexpr std::string_view kName = "muon";
  /// Of the parameters that are no matrices.
  static constexpr auto kStates = AdamwMoments::kStates;
  struct Matrix : OwnedMatrix {
    Tensor velocity;
  };
  MuonOptions options;
  std::vector<Matrix> matrices = {};
  AdamwMoments moments = {};

  [[nodiscard]] std::string description() const {
    const auto& o = options;
    return detail::concat(
        "momentum ", o.momentum, o.nesterov ? " (Nesterov)" : "", ", decoupled weight decay ",
        o.weight_decay, ", scale ", name_of(kMuonScales, o.scale),
        "; AdamW where a parameter is no matrix: rate x", o.adam_rate, ", betas ", o.beta1, " and ",
        o.beta2, ", epsilon ", o.epsilon, "; matrices of this rank: ", matrices.size());
  }
  void visit_state(StateVisitor& visitor) {
    moments.visit_state(visitor);
    for (Matrix& matrix : matrices)
      visitor.tensor(matrix.layer + ".velocity", StateKind::owned, matrix.velocity.view().flat());
  }

  static double matrix_flops(std::int64_t rows, std::int64_t columns) {
    return newton_schulz_flops(rows, columns);
  }
  void add_matrix(Context& ctx, OwnedMatrix matrix) {
    Tensor velocity = Tensor::zeros(ctx, matrix.weight.shape(), matrix.weight.dtype());
    matrices.push_back({std::move(matrix), std::move(velocity)});
  }

  double update(Context& ctx, UpdateTable& table, const StepArgs& args) {
    const double momentum = args.momentum.value_or(options.momentum);
    for (Matrix& matrix : matrices) update(ctx, matrix, args.lr * matrix.lr, momentum);
    optim::update(ctx, table, moments.next(options, args.lr * options.adam_rate, options.beta1));
    return momentum;
  }

  void update(Context& ctx, Matrix& matrix, double lr, double momentum) const {
    const TensorView direction = matrix.gradient;
    ops::axpby(ctx, 1, matrix.gradient, momentum, matrix.velocity);
    if (options.nesterov)
      ops::axpby(ctx, momentum, matrix.velocity, 1, direction);
    else
      ops::copy(ctx, matrix.velocity, direction);
    newton_schulz(ctx, {}, direction);
    const double scale = muon_scale(options.scale, direction.dim(0), direction.dim(1));
    ops::axpby(ctx, -lr * scale, direction, 1 - lr * options.weight_decay, matrix.weight);
  }
};

}  // namespace

void MuonOptions::validate() const { check_first_order("muon options", *this); }

double muon_scale(MuonScale rule, std::int64_t rows, std::int64_t columns) {
  DKFAC_CHECK(rows > 0 && columns > 0, "[muon_scale] the matrix is [", rows, ',', columns,
              "]; it must have elements");
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  return rule == MuonScale::original ? std::sqrt(std::max(1.0, r / c))
                                     : 0.2 * std::sqrt(std::max(r, c));
}

void newton_schulz(Context& ctx, const NewtonSchulz& options, TensorView x) {
  DKFAC_CHECK(x.ndim() == 2 && x.numel() > 0, "[newton_schulz] x is ", x.shape(),
              "; it must be a matrix with elements");
  DKFAC_CHECK(options.iterations >= 0 && options.epsilon > 0 && std::isfinite(options.epsilon) &&
                  std::isfinite(options.a + options.b + options.c),
              "[newton_schulz] iterations is ", options.iterations, ", a ", options.a, ", b ",
              options.b, ", c ", options.c, " and epsilon ", options.epsilon,
              "; they must be finite, iterations >= 0 and epsilon > 0");
  const TensorView tall = x.dim(0) < x.dim(1) ? x.transposed() : x;
  Scratch scratch(ctx);
  TensorView now = scratch.take(tall.shape(), x.dtype());
  TensorView next = scratch.take(tall.shape(), x.dtype());
  ops::copy(ctx, tall, next);
  normalize(ctx, options.epsilon, next, now);
  for (int i = 0; i < options.iterations; ++i) {
    iterate(ctx, options, now, next);
    std::swap(now, next);
  }
  ops::copy(ctx, now, tall);
}

std::unique_ptr<Optimizer> make_muon(std::shared_ptr<comm::Communicator> comm, MuonOptions options,
                                     Device device, ContextOptions context) {
  options.validate();
  return std::make_unique<FirstOrder<Muon>>(std::move(comm), Muon{options}, device, context);
}

}  // namespace dkfac::optim
