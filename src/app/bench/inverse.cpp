// The damped inverses of a model's factors: all together as a step does it, and one by one.
#include "dkfac/kfac/inverse.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/core.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/threads.h"
#include "dkfac/kfac/curvature.h"

#include "app/bench/bench.h"
#include "app/bench/check.h"
#include "app/bench/measure.h"
#include "app/bench/probe.h"
#include "kfac/layer_curvature.h"
#include "kfac/refresh.h"

namespace dkfac::app::bench {

namespace {

using nlohmann::ordered_json;

/// Widths above this get fewer repetitions one by one; the largest take seconds.
constexpr std::int64_t kWide = 2000;
constexpr int kRepetitionsOfWide = 3;
constexpr double kLargestResidual = 0.05;

struct Layer {
  std::string name;
  kfac::LayerCurvature curvature;
};

kfac::CurvatureOptions options_of(const BenchCommand& command) {
  return bench_config(command, "kfac", 1).optimizer.curvature;
}

/// Factors of one batch, in forward order.
std::vector<Layer> make_layers(const BenchCommand& command, Context& ctx) {
  std::vector<Layer> layers;
  std::map<std::string, std::size_t> index;
  const auto pack = [&](kfac::Factor& factor, const Tensor& square) {
    ops::pack_lower(ctx, square, factor.average);
  };
  const auto input = [&](const Recorded& r) {
    index[r.name] = layers.size();
    layers.push_back({r.name, kfac::make_layer_curvature(ctx, r.spec, options_of(command))});
    Tensor a = Tensor::empty(ctx, {kfac::a_dim(r.spec), kfac::a_dim(r.spec)});
    kfac::compute_a(ctx, r.spec, r.data, r.data.dim(0), {.type = r.data.dtype()}, {}, 0, a);
    pack(layers.back().curvature.a, a);
  };
  const auto grad_output = [&](const Recorded& r) {
    Tensor g = Tensor::empty(ctx, {kfac::g_dim(r.spec), kfac::g_dim(r.spec)});
    const std::int64_t n = r.data.dim(0);
    const double s = kfac::sample_gradient_scale(kfac::LossReduction::local_mean, n, n, 1);
    kfac::compute_g(ctx, r.spec, r.data, n, s, {.type = r.data.dtype()}, {}, 0, g);
    pack(layers.at(index.at(r.name)).curvature.g, g);
  };
  run_probe(command, ctx, input, grad_output);
  return layers;
}

class InverseBench {
 public:
  InverseBench(const BenchCommand& command, const Roof& roof)
      : command_(command),
        roof_(roof),
        options_(options_of(command)),
        ctx_(Device::cpu(), {.threads = command.threads}),
        layers_(make_layers(command, ctx_)) {}

  Outcome operator()() {
    const Quartiles all = time_all();
    for (std::size_t i = 0; i < tasks_.size(); ++i) time_one(i);
    Outcome outcome;
    outcome.json = {{"inverses", std::move(inverses_)},
                    {"all_ms", to_json(all, 1e3)},
                    {"one_by_one_ms", 1e3 * sum_},
                    {"flops", flops_},
                    {"gflops_per_s", 1e-9 * flops_ / all.median},
                    {"share_of_sgemm", 1e-9 * flops_ / all.median / roof_.gflops},
                    {"damping", options_.damping}};
    outcome.text = fmt::format(
        "{}all, one factor per thread: {:.2f} ms [{:.2f}-{:.2f}]; one by one on one thread: "
        "{:.2f} ms; {:.1f} GFLOP, {:.0f} % of SGEMM\n",
        text_, 1e3 * all.median, 1e3 * all.lower, 1e3 * all.upper, 1e3 * sum_, 1e-9 * flops_,
        100e-9 * flops_ / all.median / roof_.gflops);
    outcome.wrong = std::move(wrong_);
    return outcome;
  }

 private:
  Quartiles time_all() {
    for (Layer& layer : layers_) kfac::add_refresh_tasks(ctx_, options_, layer.curvature, tasks_);
    kfac::RefreshWorkers workers(ctx_);
    return quartiles_of(
        time_calls(command_.warm_up, command_.steps, [&] { workers.run(options_, tasks_); }));
  }

  void time_one(std::size_t i) {
    const kfac::RefreshTask& task = tasks_[i];
    const kfac::Factor& factor = *task.factor;
    const std::string name = layers_[i / 2].name;
    const char* which = i % 2 == 0 ? "A" : "G";
    const bool wide = factor.dim > kWide;
    // The one that the workers made is the one to judge.
    const double residual = inverse_residual(factor.average, task.shift, factor.inverse);
    const double tolerance = tolerance_of(factor, task.shift);
    const bool correct = task.good && residual <= tolerance;
    if (!correct) wrong_.push_back(fmt::format("{} of {}: residual {:.1e}", which, name, residual));
    const Quartiles q =
        on_one_thread(factor, task.shift, wide ? kRepetitionsOfWide : command_.steps);
    const auto n = static_cast<double>(factor.dim);
    const double flops = n * n * n;  // potrf n^3/3 and potri 2n^3/3
    sum_ += q.median;
    flops_ += flops;
    inverses_.push_back({{"layer", name},
                         {"factor", which},
                         {"dim", factor.dim},
                         {"shift", task.shift},
                         {"ms_on_one_thread", to_json(q, 1e3)},
                         {"flops", flops},
                         {"gflops_per_s", 1e-9 * flops / q.median},
                         {"residual", residual},
                         {"tolerance", tolerance},
                         {"correct", correct}});
    text_ += fmt::format("{:<28} {} {:>6} {:>10.3f} {:>10.3f} {:>10.3f} {:>8.0f} {:>10.1e}\n", name,
                         which, factor.dim, 1e3 * q.lower, 1e3 * q.median, 1e3 * q.upper,
                         1e-9 * flops / q.median, residual);
  }

  Quartiles on_one_thread(const kfac::Factor& factor, double shift, int repetitions) {
    Tensor inverse = Tensor::empty(ctx_, {factor.dim, factor.dim}, options_.dtype);
    const int before = threads();
    set_threads(1);
    const auto seconds = time_calls(1, repetitions, [&] {
      std::int32_t info = 0;
      kfac::invert_factor(ctx_, factor.average, shift, inverse, view_of(&info, {1}));
    });
    set_threads(before);
    return quartiles_of(seconds);
  }

  // c = 8 times sqrt(n) eps (errors of mixed signs) times the largest condition number that trace
  // and shift allow; more than kLargestResidual is wrong however badly conditioned.
  double tolerance_of(const kfac::Factor& factor, double shift) {
    double trace = 0;
    ops::packed_trace(ctx_, factor.average, factor.dim, view_of(&trace, {1}));
    const double condition = (trace + shift) / shift;
    const double bound = 8 * std::sqrt(static_cast<double>(factor.dim)) * 6e-8 * condition;
    return std::min(bound, kLargestResidual);
  }

  const BenchCommand& command_;
  const Roof& roof_;
  kfac::CurvatureOptions options_;
  Context ctx_;
  std::vector<Layer> layers_;
  std::vector<kfac::RefreshTask> tasks_;
  ordered_json inverses_ = ordered_json::array();
  std::string text_ =
      fmt::format("{:<28} {} {:>6} {:>10} {:>10} {:>10} {:>8} {:>10}\n", "layer", "f", "dim",
                  "quartile", "median ms", "quartile", "GFLOP/s", "residual");
  double sum_ = 0, flops_ = 0;
  std::vector<std::string> wrong_;
};

}  // namespace

Outcome bench_inverse(const BenchCommand& command, const Roof& roof) {
  return InverseBench(command, roof)();
}

}  // namespace dkfac::app::bench
