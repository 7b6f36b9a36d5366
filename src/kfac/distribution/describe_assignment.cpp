#include <algorithm>
#include <cstdio>
#include <limits>
#include <sstream>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/statistics.h"

#include "comm/collective/worker_grid.h"
#include "core/shared/aligned_rows.h"
#include "core/shared/index.h"
#include "kfac/distribution/block_width.h"
#include "kfac/distribution/cost_model.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/statistic_size.h"

namespace dkfac::kfac {
namespace {

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
  return text;
}

std::string percent(double part, double whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", whole > 0 ? 100 * part / whole : 0.0);
  return text;
}

using Row = std::vector<std::string>;

/// Renders a table with columns padded to their widest cell. The first two are left-aligned, the
/// others right-aligned, the last is not padded.
std::string render(const std::vector<Row>& rows) {
  std::vector<std::size_t> width(rows.front().size(), 0);
  for (const Row& row : rows)
    for (std::size_t c = 0; c + 1 < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  std::ostringstream out;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string pad(width[c] > row[c].size() ? width[c] - row[c].size() : 0, ' ');
      const bool last = c + 1 == row.size();
      line += c < 2 ? row[c] + pad : (last ? row[c] : pad + row[c]);
      if (!last) line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
  return std::move(out).str();
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", 1e3 * seconds);
  return text;
}

/// Width and form, e.g. "145 Cholesky"; with the rows of a low-rank factor, "25089 blocks of 128".
std::string text_of(const FactorPlan& plan) {
  if (!plan.is_set()) return "-";
  std::string text = std::to_string(plan.width()) + " " + plan.form->name;
  if (plan.has_blocks()) text += " of " + std::to_string(plan.dim);
  if (plan.has_rows()) text += " of " + std::to_string(plan.rows);
  return text;
}

/// The owner, and in brackets the other ranks of its column.
std::string workers_of(int owner, const AssignmentDetails& details) {
  std::string text = std::to_string(owner);
  if (details.workers == 1) return text;
  if (details.workers == details.world_size) return text + " (all)";
  const int columns = details.world_size / details.workers;
  const char* separator = " (";
  for (int r = owner % columns; r < details.world_size; r += columns) {
    if (r == owner) continue;
    text += separator + std::to_string(r);
    separator = ",";
  }
  return text + ")";
}

std::string note_of(const LayerSpec& spec) {
  return std::holds_alternative<PlainSpec>(spec) ? "no curvature: first-order update" : "";
}

/// Bytes that a rank keeps between steps.
struct RankBytes {
  double averages = 0, earlier = 0, inverses = 0, momentum = 0, masters = 0;
  [[nodiscard]] double sum() const { return averages + earlier + inverses + momentum + masters; }
};

void add_layer(const LayerSpec& spec, int owner, const AssignmentDetails& details,
               std::vector<RankBytes>& ranks) {
  const CurvatureBytes bytes = curvature_bytes(spec, details.curvature, details.device);
  const std::int64_t parameters = weight_numel(spec) + bias_numel(spec);
  ranks[index_of(owner)].averages += static_cast<double>(bytes.averages);
  ranks[index_of(owner)].earlier += static_cast<double>(bytes.earlier);
  const int columns = details.world_size / details.workers;
  for (int r = owner % columns; r < details.world_size; r += columns) {
    ranks[index_of(r)].inverses += static_cast<double>(bytes.inverses);
    ranks[index_of(r)].momentum += static_cast<double>(parameters * details.kept.momentum);
    ranks[index_of(r)].masters += static_cast<double>(parameters * details.kept.masters);
  }
}

constexpr int kMostRankRows = 16;

/// Joins neighbouring rows that differ in their rank alone: "160 to 4095".
void join_equal_rows(std::vector<Row>& rows) {
  std::vector<Row> out{rows.front()};
  for (std::size_t begin = 1, end = 1; begin < rows.size(); begin = end) {
    const auto same = [&](const Row& row) {
      return std::equal(row.begin() + 1, row.end(), rows[begin].begin() + 1, rows[begin].end());
    };
    for (end = begin + 1; end < rows.size() && same(rows[end]); ++end) {
    }
    out.push_back(rows[begin]);
    if (end - begin > 1) out.back()[0] += " to " + rows[end - 1][0];
  }
  rows = std::move(out);
}

std::string buffers_text(std::span<const NamedBytes> buffers) {
  std::vector<Row> rows{{"buffers of this rank", "", "bytes", ""}};
  double sum = 0;
  for (const NamedBytes& buffer : buffers) {
    const auto bytes = static_cast<double>(buffer.bytes);
    if (buffer.bytes > 0) rows.push_back({buffer.name, "", human_bytes(bytes), ""});
    sum += bytes;
  }
  rows.push_back({"sum", "", human_bytes(sum), ""});
  return render(rows);
}

}  // namespace

namespace {

/// count * element, saturating: factors may exceed any memory.
std::int64_t bytes_of(std::int64_t count, std::int64_t element) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 16;
  return count > kMost / element ? kMost : count * element;
}

}  // namespace

CurvatureBytes curvature_bytes(const LayerSpec& spec, const CurvatureOptions& options,
                               Device device) {
  const auto element = static_cast<std::int64_t>(size_of(options.dtype));
  const auto* bn = std::get_if<NormSpec>(&spec);
  CurvatureBytes bytes;
  for (const StatisticKind kind :
       {StatisticKind::a, bn != nullptr ? StatisticKind::norm : StatisticKind::g}) {
    const StatisticPlan plan = plan_statistic(spec, options, kind, device);
    bytes.averages += bytes_of(plan.numel(), element);
    if (options.refresh.staleness == Staleness::adaptive)
      bytes.earlier += bytes_of(plan.numel(), 2 * element);
    if (!plan.factor.is_set()) continue;
    const Shape stored = with_aligned_rows(plan.factor.inverse_shape(), options.dtype, device);
    bytes.inverses += bytes_of(stored.numel(), element);
    if (plan.factor.has_values()) bytes.inverses += plan.factor.groups * plan.factor.dim * element;
  }
  const bool eigen = plan_a(spec, options, device).has_values();
  if (options.inverse.method == InverseMethod::ekfac && eigen)
    bytes.inverses += bytes_of(factor_groups(spec) * g_dim(spec) * a_dim(spec), element);
  return bytes;
}

std::string describe_assignment(std::span<const std::string> names,
                                std::span<const LayerSpec> specs, std::span<const int> owners,
                                const AssignmentDetails& details) {
  DKFAC_CHECK(names.size() == specs.size() && names.size() == owners.size() &&
                  (details.seconds.empty() || details.seconds.size() == specs.size()),
              "[describe_assignment] ", names.size(), " names, ", specs.size(), " specs, ",
              owners.size(), " owners and ", details.seconds.size(),
              " times; there must be one of each per layer, or no times");
  const CurvatureOptions& options = details.curvature;
  double total_flops = 0, statistics = 0, parameters = 0;
  for (const LayerSpec& spec : specs)
    total_flops += layer_load(spec, options.dtype, options.inverse.block_width).flops;
  std::vector<double> flops(index_of(details.world_size), 0), seconds = flops;
  std::vector<RankBytes> ranks(index_of(details.world_size));
  std::vector<Row> rows{{"layer", "shape", details.workers > 1 ? "owner (workers)" : "owner",
                         "groups", "A", "G", "statistics", "work", "ms", "note"}};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const LayerSpec& spec = specs[i];
    const bool factors = has_factors(spec), timed = factors && !details.seconds.empty();
    const double own = layer_load(spec, options.dtype, options.inverse.block_width).flops;
    const auto statistic =
        static_cast<double>(curvature_bytes(spec, options, details.device).averages);
    const double time = timed ? details.seconds[i] : 0;
    flops[index_of(owners[i])] += own;
    seconds[index_of(owners[i])] += time;
    statistics += statistic;
    parameters += static_cast<double>(weight_numel(spec) + bias_numel(spec));
    add_layer(spec, owners[i], details, ranks);
    rows.push_back({names[i], describe(spec), workers_of(owners[i], details),
                    factors ? std::to_string(factor_groups(spec)) : "-",
                    text_of(plan_a(spec, options, details.device)),
                    text_of(plan_g(spec, options, details.device)),
                    statistic > 0 ? human_bytes(statistic) : "-",
                    factors ? percent(own, total_flops) : "-", timed ? milliseconds(time) : "-",
                    note_of(spec)});
  }
  std::vector<Row> per_rank{{"rank", "layers", "work", "ms", "averages", "earlier statistics",
                             "inverses", "momentum", "masters", "sum", ""}};
  std::vector<std::int64_t> layers(index_of(details.world_size), 0);
  for (const int owner : owners) ++layers[index_of(owner)];
  for (int r = 0; r < details.world_size; ++r) {
    const RankBytes& kept = ranks[index_of(r)];
    per_rank.push_back({std::to_string(r), std::to_string(layers[index_of(r)]),
                        percent(flops[index_of(r)], total_flops),
                        details.seconds.empty() ? "-" : milliseconds(seconds[index_of(r)]),
                        human_bytes(kept.averages), human_bytes(kept.earlier),
                        human_bytes(kept.inverses), human_bytes(kept.momentum),
                        human_bytes(kept.masters), human_bytes(kept.sum()), ""});
  }
  if (details.world_size > kMostRankRows) join_equal_rows(per_rank);
  std::ostringstream out;
  out << render(rows) << '\n' << render(per_rank) << '\n';
  if (!details.buffers.empty()) out << buffers_text(details.buffers) << '\n';
  if (!details.seconds.empty())
    out << "ms: of a step, "
        << (options.distribution.calibrate ? "from measured costs" : "at 100 GFLOP/s")
        << "; rebuilds count by their interval\n";
  out << block_width_text(specs, options);
  out << names.size() << " layers, " << static_cast<std::int64_t>(parameters) << " parameters, "
      << human_bytes(statistics) << " of statistics in " << options.dtype << " per exchange\n";
  return std::move(out).str();
}

std::string describe_plan(std::span<const std::string> names, std::span<const LayerSpec> specs,
                          const CurvatureOptions& given, int world_size, KeptParameters kept,
                          Device device) {
  const CurvatureOptions options = with_block_width(given, specs);
  CostModel costs;
  if (options.distribution.calibrate) {
    Context ctx(device);
    costs = calibrate(*comm::make_self(), options, measure_on(ctx, options.dtype), device);
  }
  std::vector<LayerLoad> loads;
  std::vector<double> seconds;
  for (const LayerSpec& spec : specs) {
    loads.push_back(layer_load(spec, options.dtype, options.inverse.block_width));
    seconds.push_back(layer_seconds(costs, spec, options, device));
    if (options.distribution.calibrate) loads.back().flops = seconds.back();
  }
  return describe_assignment(
      names, specs, assign(loads, world_size),
      {.world_size = world_size,
       .workers = comm::workers_of(options.distribution.grad_worker_fraction, world_size),
       .curvature = options,
       .device = device,
       .seconds = seconds,
       .kept = kept});
}

}  // namespace dkfac::kfac
