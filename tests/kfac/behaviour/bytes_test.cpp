#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/assignment.h"

#include "support/comparison_bytes.h"
#include "support/natural_gradient.h"
#include "support/plain_training.h"

// StepReport::bytes against the formulas of docs/distribution.md, "Bytes".
namespace dkfac::testing {
namespace {

using Net = PlainNet<double>;
constexpr std::int64_t kFlags = 42, kWide = 8;  // f64 throughout, but for the wires.

kfac::CurvatureOptions counted_curvature() {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.communication.bucket_bytes = 4096;
  return options;
}

/// Elements of all layers, and of those in the column of a rank.
struct Sizes {
  std::int64_t layers = 0, parameters = 0, plain = 0, statistics = 0;
  std::int64_t own_parameters = 0, own_inverses = 0, own_fishers = 0;
};

Sizes sizes_of(const kfac::CurvatureOptions& options, int ranks, int workers, int rank) {
  const auto layers = Net(1).layers;
  std::vector<kfac::LayerLoad> loads;
  for (const auto& layer : layers) loads.push_back(kfac::layer_load(layer.spec, options.dtype));
  const std::vector<int> owners = kfac::assign(loads, ranks);
  const int columns = ranks / workers;
  const bool eigen = options.inverse.method == kfac::InverseMethod::eigen;
  Sizes sizes;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec& spec = layers[i].spec;
    const std::int64_t numel = dkfac::weight_numel(spec) + dkfac::bias_numel(spec);
    const bool own = owners[i] % columns == rank % columns;
    ++sizes.layers;
    sizes.parameters += numel;
    if (own) sizes.own_parameters += numel;
    if (std::holds_alternative<PlainSpec>(spec)) sizes.plain += numel;
    if (dkfac::has_factors(spec)) {
      for (const std::int64_t d : {dkfac::a_dim(spec), dkfac::g_dim(spec)}) {
        sizes.statistics += ops::packed_size(d);
        // Good or not, damping, form.
        if (own) sizes.own_inverses += 3 + (eigen ? d * d + d : ops::packed_size(d));
      }
    } else if (std::holds_alternative<NormSpec>(spec)) {
      sizes.statistics += 3 * dkfac::weight_numel(spec);
      if (own) sizes.own_fishers += 1 + 3 * dkfac::weight_numel(spec);
    }
  }
  return sizes;
}

struct Wires {
  std::int64_t statistics = kWide, gradients = kWide, weights = kWide;  // Bytes per element.
};

std::uint64_t kfac_bytes(const Sizes& n, const kfac::StepReport& report, int ranks, int workers,
                         Wires wires) {
  const std::int64_t columns = ranks / workers;
  std::int64_t bytes = 0;
  if (report.statistics_refreshed) bytes += wires.statistics * n.statistics;
  if (workers < ranks || ranks == 1)
    bytes += wires.gradients * n.parameters + kWide * kFlags * columns;
  if (workers > 1) bytes += wires.gradients * n.own_parameters + kWide * kFlags;
  if (workers > 1 && report.inverses_refreshed) bytes += kWide * n.own_inverses;
  if (workers > 1 && report.statistics_refreshed) bytes += kWide * n.own_fishers;
  if (columns > 1) bytes += wires.weights * n.parameters;
  if (ranks > 1 && report.step == 1) bytes += kWide * n.layers;  // Which have an inverse.
  return static_cast<std::uint64_t>(bytes);
}

struct Grid {
  int ranks, workers;
};
constexpr Grid kGrids[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 2}, {4, 4}, {6, 3}};

/// Runs four steps on every rank; check(report, sizes, grid).
void each_step(optim::KfacOptions options,
               const std::function<void(const kfac::StepReport&, const Sizes&, Grid)>& check) {
  for (const Grid grid : kGrids) {
    options.curvature.distribution.grad_worker_fraction =
        static_cast<double>(grid.workers) / grid.ranks;
    comm::run_ranks(grid.ranks, [&](auto comm) {
      const Sizes sizes = sizes_of(options.curvature, grid.ranks, grid.workers, comm->rank());
      (void)train<double>(
          comm, [&](auto c) { return optim::make_kfac(c, options); }, {.steps = 4},
          [&](const kfac::StepReport& report) { check(report, sizes, grid); });
    });
  }
}

TEST(Bytes, OfTheOptimizerAtEveryFraction) {
  for (const auto method : {kfac::InverseMethod::cholesky, kfac::InverseMethod::eigen}) {
    optim::KfacOptions options{.curvature = counted_curvature()};
    options.curvature.inverse.method = method;
    options.curvature.refresh.statistics_interval = 2;
    options.curvature.refresh.inverse_interval = 3;
    each_step(options, [](const kfac::StepReport& report, const Sizes& sizes, Grid grid) {
      EXPECT_EQ(report.bytes, kfac_bytes(sizes, report, grid.ranks, grid.workers, {}))
          << grid.workers << " of " << grid.ranks << " in step " << report.step;
    });
  }
}

TEST(Bytes, OfBrainFloatsAreAQuarterOfF64) {
  optim::KfacOptions options{.curvature = counted_curvature()};
  options.curvature.communication.statistics_wire = options.curvature.communication.gradient_wire =
      options.curvature.communication.weight_wire = DType::bf16;
  each_step(options, [](const kfac::StepReport& report, const Sizes& sizes, Grid grid) {
    EXPECT_EQ(report.bytes, kfac_bytes(sizes, report, grid.ranks, grid.workers, {2, 2, 2}))
        << grid.workers << " of " << grid.ranks << " in step " << report.step;
  });
}

TEST(Bytes, OfHalvesFollowTheFirstStepWhoseMagnitudesAreUnknown) {
  optim::KfacOptions options{.curvature = counted_curvature()};
  options.curvature.communication.statistics_wire = options.curvature.communication.gradient_wire =
      options.curvature.communication.weight_wire = DType::f16;
  each_step(options, [](const kfac::StepReport& report, const Sizes& sizes, Grid grid) {
    const std::int64_t in = report.step == 1 ? kWide : 2;
    // One f32 per layer for magnitudes of gradients, a decision of four f64 per statistic.
    const auto extra =
        static_cast<std::uint64_t>(4 * sizes.layers + 4 * kWide * std::ssize(report.statistics));
    EXPECT_EQ(report.bytes,
              kfac_bytes(sizes, report, grid.ranks, grid.workers, {in, in, 2}) + extra)
        << grid.workers << " of " << grid.ranks << " in step " << report.step;
  });
}

TEST(Bytes, OfTheKlClipAreOneNumber) {
  optim::KfacOptions options{.curvature = counted_curvature()};
  options.curvature.kl_clip = 1e-3;
  each_step(options, [](const kfac::StepReport& report, const Sizes& sizes, Grid grid) {
    EXPECT_EQ(report.bytes, kfac_bytes(sizes, report, grid.ranks, grid.workers, {}) + 8);
  });
}

TEST(Bytes, OfFirstOrderMethodsAreTheGradients) {
  for (const int ranks : {1, 3})
    comm::run_ranks(ranks, [](auto comm) {
      const std::int64_t p = sizes_of(counted_curvature(), 1, 1, 0).parameters;
      for (const bool narrow : {false, true}) {
        optim::SgdOptions options;
        if (narrow) options.communication.gradient_wire = DType::bf16;
        (void)train<double>(
            comm, [&](auto c) { return optim::make_sgd(c, options); }, {.steps = 2},
            [&](const kfac::StepReport& report) {
              EXPECT_EQ(report.bytes,
                        static_cast<std::uint64_t>((narrow ? 2 : kWide) * p + kWide * kFlags));
            });
      }
    });
}

TEST(Bytes, OfThePreconditioner) {
  for (const Grid grid : kGrids)
    comm::run_ranks(grid.ranks, [&](auto comm) {
      kfac::CurvatureOptions options = counted_curvature();
      options.refresh.statistics_interval = 2;
      options.refresh.inverse_interval = 3;
      options.distribution.grad_worker_fraction = static_cast<double>(grid.workers) / grid.ranks;
      const Sizes n = sizes_of(options, grid.ranks, grid.workers, comm->rank());
      (void)train_preconditioned<double>(comm, options, {.steps = 4}, [&](const auto& report) {
        const bool due = report.statistics_refreshed;
        std::int64_t elements = due ? n.statistics + kFlags * grid.ranks : kFlags;
        if (grid.workers > 1 && report.inverses_refreshed) elements += n.own_inverses;
        if (grid.workers > 1 && due) elements += n.own_fishers;
        if (grid.workers < grid.ranks) elements += n.parameters - n.plain;
        if (grid.ranks > 1 && report.step == 1) elements += n.layers;  // Which have an inverse.
        EXPECT_EQ(report.bytes, static_cast<std::uint64_t>(kWide * elements) +
                                    comparison_bytes(report, grid.ranks, n.layers))
            << grid.workers << " of " << grid.ranks << " in step " << report.step;
      });
    });
}

}  // namespace
}  // namespace dkfac::testing
