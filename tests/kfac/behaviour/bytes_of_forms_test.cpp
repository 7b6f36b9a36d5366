#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/comparison_bytes.h"
#include "support/natural_gradient.h"
#include "support/near.h"

// StepReport::bytes of a preconditioner against docs/distribution.md, "Bytes": groups, rows, full
// Fishers, EKFAC, adaptive intervals and wires.
namespace dkfac::testing {
namespace {

constexpr std::int64_t kSamples = 12, kFormFlags = 42, kFormWide = 8;  // f64 but for the wires.

const std::vector<LayerSpec>& specs() {
  static const std::vector<LayerSpec> all{
      Conv2dSpec{.in = 4, .out = 6, .window = Window::square(3, 1, 1), .groups = 2},
      NormSpec{.channels = 6}, LinearSpec{.in = 79, .out = 70, .max_rows = kSamples}};
  return all;
}

std::int64_t triangle(std::int64_t d) { return d * (d + 1) / 2; }

/// Elements on the wire of one statistic and of its inverse.
struct FormSizes {
  std::int64_t statistic = 0, shared = 0, scales = 0;
};
FormSizes form_sizes_of(const kfac::StatisticReport& s, const kfac::CurvatureOptions& options) {
  const bool g = s.kind == kfac::StatisticKind::g;
  const bool ekfac = options.inverse.method == kfac::InverseMethod::ekfac;
  if (s.kind == kfac::StatisticKind::norm) {
    if (options.statistics.norm_fisher == kfac::NormFisher::full)
      return {triangle(12), triangle(12) + 3};
    return {3 * 6, 3 * 6 + 1};
  }
  const std::int64_t groups = s.layer == 0 ? 2 : 1, head = 1 + 2 * groups;
  const std::int64_t a = s.layer == 0 ? 4 / 2 * 9 + 1 : 80, out = s.layer == 0 ? 3 : 70;
  const std::int64_t d = g ? out : a;
  if (ekfac) return {groups * triangle(d), groups * (d * d + d) + head + 1, g ? groups * a * d : 0};
  if (options.statistics.new_weight == 1 && s.layer == 2)
    return {kSamples * d, kSamples * d + head};
  if (options.inverse.block_width == 10 && s.layer == 2) {
    const std::int64_t blocks = g ? 7 : 8;
    return {blocks * triangle(10), blocks * triangle(10) + 1 + 2 * blocks};
  }
  return {groups * triangle(d), groups * triangle(d) + head};
}

struct FormGrid {
  int ranks, workers;
};

std::uint64_t expected(const kfac::StepReport& report, const kfac::CurvatureOptions& options,
                       const std::vector<int>& owners, FormGrid grid, int rank) {
  const int columns = grid.ranks / grid.workers;
  const bool first = report.step == 1, half = options.communication.statistics_wire == DType::f16;
  const std::int64_t wire =
      options.communication.statistics_wire && !(half && first)
          ? static_cast<std::int64_t>(size_of(*options.communication.statistics_wire))
          : kFormWide;
  std::int64_t bytes = kFormWide * kFormFlags * (report.statistics_refreshed ? grid.ranks : 1);
  for (const kfac::StatisticReport& s : report.statistics) {
    if (!s.refreshed) continue;
    const FormSizes n = form_sizes_of(s, options);
    bytes += wire * n.statistic;
    if (!first) bytes += wire * n.scales;  // Before, there are no eigenvectors.
    const int owner = owners[static_cast<std::size_t>(s.layer)];
    const bool used_at_once = s.kind == kfac::StatisticKind::norm &&
                              options.statistics.norm_fisher != kfac::NormFisher::full;
    if (grid.workers > 1 && owner % columns == rank % columns &&
        (report.inverses_refreshed || used_at_once))
      bytes += kFormWide * n.shared;
  }
  for (const LayerSpec& spec : specs())
    if (columns > 1) bytes += kFormWide * (dkfac::weight_numel(spec) + dkfac::bias_numel(spec));
  if (grid.ranks > 1 && first) bytes += kFormWide * std::ssize(specs());  // Which have an inverse.
  const bool decisions = half || options.refresh.staleness == kfac::Staleness::adaptive;
  if (decisions && report.statistics_refreshed) bytes += 32 * std::ssize(report.statistics);
  return static_cast<std::uint64_t>(bytes) +
         comparison_bytes(report, grid.ranks, std::ssize(specs()));
}

std::vector<double> normal(std::int64_t count, std::uint64_t seed) {
  std::vector<double> all(static_cast<std::size_t>(count));
  Random random(seed);
  fill_normal(view_of(all.data(), {count}), 0, 1, random);
  return all;
}

/// Inverses are renewed in steps that refresh their statistics.
void expect_bytes(kfac::CurvatureOptions options, const std::vector<FormGrid>& grids) {
  options.dtype = DType::f64;
  options.damping = 1e-2;
  for (const FormGrid grid : grids) {
    options.distribution.grad_worker_fraction = static_cast<double>(grid.workers) / grid.ranks;
    comm::run_ranks(grid.ranks, [&](auto comm) {
      std::vector<kfac::LayerLoad> loads;
      for (const auto& spec : specs())
        loads.push_back(kfac::layer_load(spec, options.dtype, options.inverse.block_width));
      const std::vector<int> owners = kfac::assign(loads, grid.ranks);
      kfac::Preconditioner preconditioner(comm, options);
      const auto conv = preconditioner.add_layer("conv", specs()[0]);
      const auto bn = preconditioner.add_layer("bn", specs()[1]);
      const auto fc = preconditioner.add_layer("fc", specs()[2]);
      const std::int64_t n = kSamples / comm->size();
      const std::vector<double> mean(6, 0.1), inv_std(6, 2);
      for (std::uint64_t step = 0; step < 5; ++step) {
        const auto seed = 100 * step + static_cast<std::uint64_t>(comm->rank());
        const auto x = normal(n * 25 * 4, seed), dy = normal(n * 25 * 6, seed + 10);
        const auto z = normal(n * 6, seed + 20), dz = normal(n * 6, seed + 30);
        const auto h = normal(n * 79, seed + 40), dh = normal(n * 70, seed + 50);
        preconditioner.record_input(conv, view_of(x.data(), {n, 5, 5, 4}));
        preconditioner.record_input(fc, view_of(h.data(), {n, 79}));
        preconditioner.record_grad_output(fc, view_of(dh.data(), {n, 70}));
        preconditioner.record_normalization(bn, view_of(z.data(), {n, 6}),
                                            view_of(mean.data(), {6}), view_of(inv_std.data(), {6}),
                                            view_of(dz.data(), {n, 6}));
        preconditioner.record_grad_output(conv, view_of(dy.data(), {n, 5, 5, 6}));
        std::vector<std::vector<double>> parameters;
        for (const auto& spec : specs()) {
          parameters.emplace_back(static_cast<std::size_t>(dkfac::weight_numel(spec)), 1.0);
          parameters.emplace_back(static_cast<std::size_t>(dkfac::bias_numel(spec)), 1.0);
        }
        const auto view = [&](std::size_t i) {
          return view_of(parameters[i].data(), {std::ssize(parameters[i])});
        };
        const std::vector<kfac::LayerGrad> grads{
            {conv, view(0), view(1)}, {bn, view(2), view(3)}, {fc, view(4), view(5)}};
        const kfac::StepReport report = preconditioner.step(grads);
        EXPECT_TRUE(report.updated);
        EXPECT_EQ(report.bytes, expected(report, options, owners, grid, comm->rank()))
            << grid.workers << " of " << grid.ranks << " in step " << report.step;
      }
    });
  }
}

const std::vector<FormGrid> kFormGrids{{1, 1}, {2, 1}, {2, 2}, {4, 2}};

TEST(BytesOfForms, OfGroupsAndFullFishers) {
  kfac::CurvatureOptions options = natural_gradient();
  options.refresh.statistics_interval = options.refresh.inverse_interval = 2;
  expect_bytes(options, kFormGrids);
  options.statistics.norm_fisher = kfac::NormFisher::full;
  expect_bytes(options, kFormGrids);
}

TEST(BytesOfForms, OfRows) {
  kfac::CurvatureOptions options = natural_gradient();
  options.statistics.new_weight = 1;
  expect_bytes(options, kFormGrids);
}

TEST(BytesOfForms, OfBlocks) {
  kfac::CurvatureOptions options = natural_gradient();
  options.inverse.block_width = 10;  // Of 70 and 80.
  expect_bytes(options, kFormGrids);
}

TEST(BytesOfForms, OfEkfac) {
  kfac::CurvatureOptions options = natural_gradient();
  options.inverse.method = kfac::InverseMethod::ekfac;
  options.refresh.inverse_interval = 2;
  expect_bytes(options, {{1, 1}, {2, 2}, {4, 4}});
}

TEST(BytesOfForms, OfAdaptiveIntervals) {
  kfac::CurvatureOptions options = natural_gradient();
  options.refresh.staleness = kfac::Staleness::adaptive;
  options.refresh.similarity = 0.9;
  expect_bytes(options, kFormGrids);
}

TEST(BytesOfForms, OfWires) {
  for (const DType wire : {DType::bf16, DType::f16}) {
    kfac::CurvatureOptions options = natural_gradient();
    options.communication.statistics_wire = wire;
    expect_bytes(options, kFormGrids);
  }
}

}  // namespace
}  // namespace dkfac::testing
