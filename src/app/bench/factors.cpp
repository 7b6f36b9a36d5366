// Benchmark of the factors of every layer of a model for one real batch, timed inside its pass.
#include <algorithm>

#include <fmt/core.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/statistics.h"

#include "app/bench/bench.h"
#include "app/bench/check.h"
#include "app/bench/measure.h"
#include "app/bench/probe.h"
#include "app/logging/number_text.h"

namespace dkfac::app::bench {

namespace {

using nlohmann::ordered_json;

/// The identity behind 3x3 factors suffers cancellation of about 1e-5 of the largest entry, and a
/// product with a random vector sums many entries.
constexpr double kTolerance = 1e-3;

class FactorBench {
 public:
  FactorBench(const BenchCommand& command, const Roof& roof)
      : command_(command), roof_(roof), ctx_(Device::cpu(), {.threads = command.threads}) {}

  Outcome operator()() {
    run_probe(
        command_, ctx_, [this](const Recorded& r) { time_a(r); },
        [this](const Recorded& r) { time_g(r); });
    Outcome outcome;
    outcome.json = {{"factors", std::move(factors_)},
                    {"methods", std::move(methods_)},
                    {"total_ms", 1e3 * total_},
                    {"total_flops", flops_},
                    {"gflops_per_s", 1e-9 * flops_ / total_},
                    {"fraction_of_sgemm", 1e-9 * flops_ / total_ / roof_.gflops},
                    {"tolerance", kTolerance}};
    outcome.text = fmt::format("{}all A and G: {} ms, {} GFLOP, {} GFLOP/s, {} % of SGEMM\n", text_,
                               three_digits(1e3 * total_), three_digits(1e-9 * flops_),
                               three_digits(1e-9 * flops_ / total_),
                               three_digits(100e-9 * flops_ / total_ / roof_.gflops));
    if (!methods_text_.empty()) outcome.text += "3x3 factors, by method\n" + methods_text_;
    outcome.wrong = std::move(wrong_);
    return outcome;
  }

 private:
  void time_a(const Recorded& r) {
    const std::int64_t batch = r.data.dim(0), d = dkfac::a_dim(r.spec);
    Tensor a = Tensor::empty(ctx_, {d, d});
    const auto seconds = time_calls(command_.warm_up, command_.steps, [&] {
      kfac::compute_a(ctx_, r.spec,
                      {.data = r.data,
                       .global_batch = static_cast<double>(batch),
                       .operand = {.type = r.data.dtype()}},
                      0, a);
    });
    std::int64_t rows = batch;
    if (const auto* conv = std::get_if<Conv2dSpec>(&r.spec))
      rows = dkfac::patch_spec(*conv, batch, r.data.dim(1), r.data.dim(2)).rows();
    add(r, "A", d, rows, seconds, error_of_a(ctx_, r.spec, r.data, batch, a));
    time_methods(r, a);
  }

  /// Times the methods of ops::patch_gram for this shape, once for all layers with it.
  void time_methods(const Recorded& r, TensorView a) {
    const auto* conv = std::get_if<Conv2dSpec>(&r.spec);
    if (conv == nullptr || r.data.dtype() != a.dtype()) return;
    const ops::PatchSpec spec =
        dkfac::patch_spec(*conv, r.data.dim(0), r.data.dim(1), r.data.dim(2));
    const auto applies = [&](ops::PatchMethod method) {
      return ops::patch_method_applies(ctx_, spec, a.dtype(), method);
    };
    const bool known = std::find(timed_.begin(), timed_.end(), spec) != timed_.end();
    if (known || conv->groups > 1 || !applies(ops::PatchMethod::offsets)) return;
    timed_.push_back(spec);
    ordered_json entry = {{"channels", spec.c}, {"height", spec.h}, {"width", spec.w}};
    methods_text_ +=
        fmt::format("{:>4} channels, {:>3} x {:<3} batch {:>4}", spec.c, spec.h, spec.w, spec.n);
    for (const auto& [name, method] : {std::pair{"panels", ops::PatchMethod::panels},
                                       {"offsets", ops::PatchMethod::offsets},
                                       {"correlation", ops::PatchMethod::correlation}}) {
      if (!applies(method)) continue;
      const Quartiles q =
          quartiles_of(time_calls(command_.warm_up, command_.steps, [&, method = method] {
            ops::patch_gram(ctx_, spec, 1, r.data, 0, a, method);
          }));
      entry[name] = to_json(q, 1e3);
      methods_text_ += fmt::format("  {} {:8.3f}", name, 1e3 * q.median);
    }
    methods_text_ += " ms\n";
    methods_.push_back(std::move(entry));
  }

  void time_g(const Recorded& r) {
    const std::int64_t batch = r.data.dim(0), d = dkfac::g_dim(r.spec);
    Tensor g = Tensor::empty(ctx_, {d, d});
    const double s = kfac::sample_gradient_scale(LossReduction::local_mean, batch, batch, 1);
    const auto seconds = time_calls(command_.warm_up, command_.steps, [&] {
      kfac::compute_g(ctx_, r.spec,
                      {.data = r.data,
                       .global_batch = static_cast<double>(batch),
                       .sample_scale = s,
                       .operand = {.type = r.data.dtype()}},
                      0, g);
    });
    add(r, "G", d, r.data.numel() / d, seconds, error_of_g(ctx_, r.data, batch, s, g));
  }

  void add(const Recorded& r, const char* which, std::int64_t d, std::int64_t rows,
           const std::vector<double>& seconds, double error) {
    const Quartiles q = quartiles_of(seconds);
    // The multiply-adds of one triangle, regardless of the method.
    const double flops = static_cast<double>(rows) * static_cast<double>(d * (d + 1));
    const double bytes = static_cast<double>(r.data.bytes()) + 2.0 * static_cast<double>(d * d);
    total_ += q.median;
    flops_ += flops;
    const bool correct = error <= kTolerance;  // False for a NaN.
    if (!correct) wrong_.push_back(fmt::format("{} of {}: error {:.1e}", which, r.name, error));
    factors_.push_back({{"layer", r.name},
                        {"factor", which},
                        {"dim", d},
                        {"rows", rows},
                        {"ms", to_json(q, 1e3)},
                        {"flops", flops},
                        {"bytes", bytes},
                        {"fraction_of_sgemm", 1e-9 * flops / q.median / roof_.gflops},
                        {"fraction_of_copy", 1e-9 * bytes / q.median / roof_.copy_gb_per_s},
                        {"error", error},
                        {"correct", correct}});
    text_ += fmt::format("{:<28} {} {:>6} {:>9} {:>9} {:>9} {:>9} {:>8} {:>5} %\n", r.name, which,
                         d, rows, three_digits(1e3 * q.lower), three_digits(1e3 * q.median),
                         three_digits(1e3 * q.upper), three_digits(1e-9 * flops / q.median),
                         three_digits(100e-9 * flops / q.median / roof_.gflops));
  }

  const BenchCommand& command_;
  const Roof& roof_;
  Context ctx_;
  ordered_json factors_ = ordered_json::array(), methods_ = ordered_json::array();
  std::vector<ops::PatchSpec> timed_;
  std::string methods_text_;
  std::string text_ =
      fmt::format("{:<28} {} {:>6} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7}\n", "layer", "f", "dim",
                  "rows", "quartile", "median ms", "quartile", "GFLOP/s", "SGEMM");
  double total_ = 0, flops_ = 0;
  std::vector<std::string> wrong_;
};

}  // namespace

Outcome bench_factors(const BenchCommand& command, const Roof& roof) {
  return FactorBench(command, roof)();
}

}  // namespace dkfac::app::bench
