// Benchmark of the damped inverses of a model's factors: all together as in a step, and one by one.
#include "dkfac/kfac/inverse.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/core.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/threads.h"
#include "dkfac/kfac/statistics.h"

#include "app/bench/bench.h"
#include "app/bench/check.h"
#include "app/bench/measure.h"
#include "app/bench/probe.h"
#include "app/logging/number_text.h"

namespace dkfac::app::bench {

namespace {

using nlohmann::ordered_json;

/// Above this width, individual inverses get fewer repetitions, because the largest take seconds.
constexpr std::int64_t kWide = 2000;
constexpr int kRepetitionsOfWide = 3;
constexpr double kLargestResidual = 0.05;

/// A factor of one batch and the damping of its diagonal.
struct Factor {
  std::string layer;
  const char* which = "A";
  std::int64_t dim = 0;
  Tensor packed;
  double trace = 0, shift = 0;
};

Factor make_factor(Context& ctx, std::string layer, const char* which, const Tensor& square) {
  Factor out{std::move(layer), which, square.shape()[0], {}};
  out.packed = Tensor::empty(ctx, {ops::packed_size(out.dim)});
  ops::pack_lower(ctx, square, out.packed);
  ops::packed_trace(ctx, out.packed, out.dim, view_of(&out.trace, {1}));
  return out;
}

/// Computes A and then G of each layer, in forward order.
std::vector<Factor> make_factors(const BenchCommand& command, Context& ctx,
                                 const kfac::CurvatureOptions& options) {
  std::map<std::string, std::size_t> index;
  std::vector<Factor> factors;
  const auto input = [&](const Recorded& r) {
    Tensor a = Tensor::empty(ctx, {dkfac::a_dim(r.spec), dkfac::a_dim(r.spec)});
    kfac::compute_a(ctx, r.spec,
                    {.data = r.data,
                     .global_batch = static_cast<double>(r.data.dim(0)),
                     .operand = {.type = r.data.dtype()}},
                    0, a);
    index[r.name] = factors.size();
    factors.push_back(make_factor(ctx, r.name, "A", a));
    factors.emplace_back();
  };
  const auto grad_output = [&](const Recorded& r) {
    Tensor g = Tensor::empty(ctx, {dkfac::g_dim(r.spec), dkfac::g_dim(r.spec)});
    const std::int64_t n = r.data.dim(0);
    const double s = kfac::sample_gradient_scale(LossReduction::local_mean, n, n, 1);
    kfac::compute_g(ctx, r.spec,
                    {.data = r.data,
                     .global_batch = static_cast<double>(n),
                     .sample_scale = s,
                     .operand = {.type = r.data.dtype()}},
                    0, g);
    factors.at(index.at(r.name) + 1) = make_factor(ctx, r.name, "G", g);
  };
  run_probe(command, ctx, input, grad_output);
  for (std::size_t i = 0; i < factors.size(); i += 2) {
    Factor &a = factors[i], &g = factors[i + 1];
    // As if G had equal eigenvalues, for which a relative damping is least.
    const double damping = kfac::layer_damping(options, a.trace, a.dim, g.trace,
                                               g.trace / static_cast<double>(g.dim) * g.trace);
    const double root = std::sqrt(damping);
    const auto split = kfac::split_damping(damping, a.trace, a.dim, g.trace, g.dim);
    a.shift = split ? split->a : root;
    g.shift = split ? split->g : root;
  }
  return factors;
}

/// Returns 8 sqrt(n) eps (errors of mixed signs) times the largest condition number that trace and
/// shift allow. A residual above kLargestResidual is wrong at any conditioning.
double tolerance_of(const Factor& factor) {
  const double condition = (factor.trace + factor.shift) / factor.shift;
  const double bound = 8 * std::sqrt(static_cast<double>(factor.dim)) * 6e-8 * condition;
  return std::min(bound, kLargestResidual);
}

class InverseBench {
 public:
  InverseBench(const BenchCommand& command, std::shared_ptr<comm::Communicator> comm,
               const Roof& roof)
      : command_(command),
        roof_(roof),
        options_(bench_config(command, "kfac", 1).optimizer.curvature()),
        ctx_(Device::cpu(), {.threads = command.threads}),
        all_(quartiles_of(inverse_seconds(command, std::move(comm)))) {}

  Outcome operator()() {
    for (const Factor& factor : make_factors(command_, ctx_, options_)) time_one(factor);
    Outcome outcome;
    outcome.json = {{"inverses", std::move(inverses_)},
                    {"all_ms", to_json(all_, 1e3)},
                    {"one_by_one_ms", 1e3 * sum_},
                    {"flops", flops_},
                    {"gflops_per_s", 1e-9 * flops_ / all_.median},
                    {"fraction_of_sgemm", 1e-9 * flops_ / all_.median / roof_.gflops},
                    {"damping", options_.damping}};
    outcome.text = fmt::format(
        "{}all in a step, one factor per thread: {} ms [{}-{}]; one by one on one "
        "thread: {} ms; {} GFLOP, {} % of SGEMM\n",
        text_, three_digits(1e3 * all_.median), three_digits(1e3 * all_.lower),
        three_digits(1e3 * all_.upper), three_digits(1e3 * sum_), three_digits(1e-9 * flops_),
        three_digits(100e-9 * flops_ / all_.median / roof_.gflops));
    outcome.wrong = std::move(wrong_);
    return outcome;
  }

 private:
  void time_one(const Factor& factor) {
    Tensor inverse = Tensor::empty(ctx_, {factor.dim, factor.dim});
    const Quartiles q = on_one_thread(factor, inverse);
    const double residual = inverse_residual(factor.packed, factor.shift, inverse);
    const double tolerance = tolerance_of(factor);
    const bool correct = residual <= tolerance;  // False for a NaN.
    if (!correct)
      wrong_.push_back(
          fmt::format("{} of {}: residual {:.1e}", factor.which, factor.layer, residual));
    const auto n = static_cast<double>(factor.dim);
    const double flops = n * n * n;  // potrf n^3/3 and potri 2n^3/3
    sum_ += q.median;
    flops_ += flops;
    inverses_.push_back({{"layer", factor.layer},
                         {"factor", factor.which},
                         {"dim", factor.dim},
                         {"shift", factor.shift},
                         {"ms_on_one_thread", to_json(q, 1e3)},
                         {"flops", flops},
                         {"gflops_per_s", 1e-9 * flops / q.median},
                         {"residual", residual},
                         {"tolerance", tolerance},
                         {"correct", correct}});
    text_ += fmt::format("{:<28} {} {:>6} {:>10} {:>10} {:>10} {:>8} {:>10.1e}\n", factor.layer,
                         factor.which, factor.dim, three_digits(1e3 * q.lower),
                         three_digits(1e3 * q.median), three_digits(1e3 * q.upper),
                         three_digits(1e-9 * flops / q.median), residual);
  }

  Quartiles on_one_thread(const Factor& factor, Tensor& inverse) {
    const int repetitions = factor.dim > kWide ? kRepetitionsOfWide : command_.steps;
    const int before = threads();
    set_threads(1);
    const auto seconds = time_calls(1, repetitions, [&] {
      std::int32_t info = 0;
      kfac::invert_factor(ctx_, factor.packed, factor.shift, inverse, view_of(&info, {1}));
      DKFAC_CHECK(info == 0, "[bench] ", factor.which, " of ", factor.layer, " has no inverse");
    });
    set_threads(before);
    return quartiles_of(seconds);
  }

  const BenchCommand& command_;
  const Roof& roof_;
  kfac::CurvatureOptions options_;
  Context ctx_;
  Quartiles all_;
  ordered_json inverses_ = ordered_json::array();
  std::string text_ =
      fmt::format("{:<28} {} {:>6} {:>10} {:>10} {:>10} {:>8} {:>10}\n", "layer", "f", "dim",
                  "quartile", "median ms", "quartile", "GFLOP/s", "residual");
  double sum_ = 0, flops_ = 0;
  std::vector<std::string> wrong_;
};

}  // namespace

Outcome bench_inverse(const BenchCommand& command, std::shared_ptr<comm::Communicator> comm,
                      const Roof& roof) {
  return InverseBench(command, std::move(comm), roof)();
}

}  // namespace dkfac::app::bench
