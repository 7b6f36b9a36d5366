#include <algorithm>
#include <cstdio>
#include <sstream>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/assignment.h"

#include "comm/collective/worker_grid.h"
#include "core/shared/index.h"
#include "kfac/distribution/block_width.h"
#include "kfac/distribution/cost_model.h"
#include "kfac/distribution/kept_bytes.h"
#include "kfac/distribution/layer_work.h"
#include "kfac/distribution/plan_owners.h"
#include "kfac/distribution/split_plan.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/shared/curvature_work.h"

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

/// The owner, in brackets the other ranks of its column, and other ranks that invert a factor.
std::string ranks_of(const LayerOwners& owners, const AssignmentDetails& details) {
  std::string text = std::to_string(owners.layer);
  if (details.workers == details.world_size && details.workers > 1) {
    text += " (all)";
  } else if (details.workers > 1) {
    const char* separator = " (";
    for (const int r : column_of(owners.layer, details.workers, details.world_size)) {
      if (r == owners.layer) continue;
      text += separator + std::to_string(r);
      separator = ",";
    }
    text += ")";
  }
  const auto add = [&](const char* factor, int rank, int ranks) {
    if (rank == owners.layer && ranks == 1) return;
    text += factor;
    if (ranks == 1 || rank != owners.layer) text += std::to_string(rank);
    if (ranks == 1) return;
    const int first = rank - rank % ranks;
    if (rank != owners.layer) text += " of ";
    text += "ranks " + std::to_string(first) + " to " + std::to_string(first + ranks - 1);
  };
  add(", A: ", owners.a, owners.ranks_a);
  add(", G: ", owners.g, owners.ranks_g);
  return text;
}

std::string note_of(const LayerSpec& spec) {
  return std::holds_alternative<PlainSpec>(spec) ? "no curvature: first-order update" : "";
}

/// Bytes that a rank keeps of the layers that it preconditions.
struct WorkerBytes {
  double momentum = 0, masters = 0;
};

void add_layer(const LayerSpec& spec, int owner, const AssignmentDetails& details,
               std::vector<WorkerBytes>& ranks) {
  const std::int64_t parameters = weight_numel(spec) + bias_numel(spec);
  for (const int r : column_of(owner, details.workers, details.world_size)) {
    ranks[index_of(r)].momentum += static_cast<double>(parameters * details.kept.momentum);
    ranks[index_of(r)].masters += static_cast<double>(parameters * details.kept.masters);
  }
}

/// Adds to each rank its part of the work of a layer.
void add_load(const FactorLoads& load, const LayerSpec& spec, const LayerOwners& owners,
              const AssignmentDetails& details, std::vector<double>& ranks) {
  for_work(
      shared_load(load, spec, details.curvature, details.device, owners.ranks_a, owners.ranks_g),
      owners, [&](int rank, double work) { ranks[index_of(rank)] += work; });
}

/// How even the work of the ranks is, and how many factors several ranks invert.
std::string balance_text(std::span<const double> work, std::span<const LayerOwners> owners,
                         double total, const CurvatureOptions& options) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f",
                *std::ranges::max_element(work) * static_cast<double>(work.size()) / total);
  std::string out = detail::concat("work of a rank: at most ", text, " times an even share");
  if (!options.distribution.split_wide) return out + "\n";
  std::int64_t wide = 0;
  for (const LayerOwners& at : owners) wide += (at.ranks_a > 1 ? 1 : 0) + (at.ranks_g > 1 ? 1 : 0);
  const std::string idle = idle_split(owners, options, static_cast<int>(work.size()));
  return detail::concat(out, "; several ranks invert each of ", wide, " factors (split_wide)",
                        idle.empty() ? "" : ": ", idle, "\n");
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

std::string describe_assignment(std::span<const std::string> names,
                                std::span<const LayerSpec> specs,
                                std::span<const LayerOwners> owners,
                                const AssignmentDetails& details) {
  DKFAC_CHECK(names.size() == specs.size() && names.size() == owners.size() &&
                  (details.seconds.empty() || details.seconds.size() == specs.size()),
              "[describe_assignment] ", names.size(), " names, ", specs.size(), " specs, ",
              owners.size(), " owners and ", details.seconds.size(),
              " times; there must be one of each per layer, or no times");
  const CurvatureOptions& options = details.curvature;
  double total_flops = 0, statistics = 0, parameters = 0;
  const auto load = [&options](const LayerSpec& spec) {
    return factor_loads(spec, options.dtype, options.inverse.block_width);
  };
  for (const LayerSpec& spec : specs) total_flops += load(spec).whole();
  std::vector<double> flops(index_of(details.world_size), 0), seconds = flops;
  std::vector<WorkerBytes> ranks(index_of(details.world_size));
  std::vector<KeptBytes> curvature(ranks.size());
  std::vector<Row> rows{{"layer", "shape", details.workers > 1 ? "owner (workers)" : "owner",
                         "groups", "A", "G", "statistics", "work", "ms", "note"}};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const LayerSpec& spec = specs[i];
    const bool factors = has_factors(spec), timed = factors && !details.seconds.empty();
    const FactorLoads own = load(spec);
    const auto statistic =
        static_cast<double>(curvature_bytes(spec, options, details.device).averages);
    add_load(own, spec, owners[i], details, flops);
    if (timed) add_load(details.seconds[i], spec, owners[i], details, seconds);
    statistics += statistic;
    parameters += static_cast<double>(weight_numel(spec) + bias_numel(spec));
    add_layer(spec, owners[i].layer, details, ranks);
    add_kept(spec, owners[i], options, details.device, details.workers, curvature);
    rows.push_back({names[i], describe(spec), ranks_of(owners[i], details),
                    factors ? std::to_string(factor_groups(spec)) : "-",
                    text_of(plan_a(spec, options, details.device)),
                    text_of(plan_g(spec, options, details.device)),
                    statistic > 0 ? human_bytes(statistic) : "-",
                    factors ? percent(own.whole(), total_flops) : "-",
                    timed ? milliseconds(details.seconds[i].whole()) : "-", note_of(spec)});
  }
  std::vector<Row> per_rank{{"rank", "layers", "work", "ms", "averages", "earlier statistics",
                             "inverses", "momentum", "masters", "sum", ""}};
  std::vector<std::int64_t> layers(index_of(details.world_size), 0);
  for (const LayerOwners& layer : owners) ++layers[index_of(layer.layer)];
  for (int r = 0; r < details.world_size; ++r) {
    const WorkerBytes& kept = ranks[index_of(r)];
    const KeptBytes& own = curvature[index_of(r)];
    const double sum = own.averages + own.earlier + own.inverses + kept.momentum + kept.masters;
    per_rank.push_back({std::to_string(r), std::to_string(layers[index_of(r)]),
                        percent(flops[index_of(r)], total_flops),
                        details.seconds.empty() ? "-" : milliseconds(seconds[index_of(r)]),
                        human_bytes(own.averages), human_bytes(own.earlier),
                        human_bytes(own.inverses), human_bytes(kept.momentum),
                        human_bytes(kept.masters), human_bytes(sum), ""});
  }
  if (details.world_size > kMostRankRows) join_equal_rows(per_rank);
  std::ostringstream out;
  out << render(rows) << '\n' << render(per_rank) << '\n';
  if (!details.buffers.empty()) out << buffers_text(details.buffers) << '\n';
  if (!details.seconds.empty())
    out << "ms: of a step, "
        << (options.distribution.calibrate ? "from measured costs" : "at 100 GFLOP/s")
        << "; rebuilds count by their interval\n";
  if (details.world_size > 1 && total_flops > 0)
    out << balance_text(flops, owners, total_flops, options);
  out << block_width_text(specs, options);
  out << names.size() << " layers, " << static_cast<std::int64_t>(parameters) << " parameters, "
      << human_bytes(statistics) << " of statistics in " << options.dtype
      << (options.distribution.local_statistics && details.world_size > 1
              ? ", each of its owner's samples\n"
              : " per exchange\n");
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
  std::vector<FactorLoads> seconds;
  for (const LayerSpec& spec : specs)
    seconds.push_back(factor_seconds(costs, spec, options, device));
  return describe_assignment(
      names, specs, plan_owners(specs, options, costs, world_size, device),
      {.world_size = world_size,
       .workers = comm::workers_of(options.distribution.grad_worker_fraction, world_size),
       .curvature = options,
       .device = device,
       .seconds = seconds,
       .kept = kept});
}

}  // namespace dkfac::kfac
