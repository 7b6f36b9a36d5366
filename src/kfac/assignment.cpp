#include "dkfac/kfac/assignment.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <sstream>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/curvature.h"

namespace dkfac::kfac {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Of a BatchNorm, at most: diagonal blocks have fewer.
std::int64_t fisher_numel(const LayerSpec& spec) {
  const auto* bn = std::get_if<BatchNormSpec>(&spec);
  return bn == nullptr ? 0 : batch_norm_rows(*bn, BatchNormFisher::unit_wise) * bn->channels;
}

/// Elements that the owner of a layer keeps between steps: packed averages and inverses.
std::int64_t state_numel(const LayerSpec& spec) {
  if (has_factors(spec)) {
    const std::int64_t a = a_dim(spec), g = g_dim(spec);
    return ops::packed_size(a) + ops::packed_size(g) + a * a + g * g;
  }
  return fisher_numel(spec);
}

/// Elements of one statistic on the wire.
std::int64_t statistic_numel(const LayerSpec& spec) {
  if (has_factors(spec)) return ops::packed_size(a_dim(spec)) + ops::packed_size(g_dim(spec));
  return fisher_numel(spec);
}

int least_loaded(std::span<const LayerLoad> ranks, bool by_bytes) {
  int best = 0;
  for (int r = 1; r < static_cast<int>(ranks.size()); ++r) {
    const LayerLoad &a = ranks[at(r)], &b = ranks[at(best)];
    const bool less_bytes = a.bytes < b.bytes;
    if (by_bytes ? less_bytes : a.flops < b.flops || (a.flops == b.flops && less_bytes)) best = r;
  }
  return best;
}

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

/// Columns padded to their widest cell, the first two to the left, numbers to the right.
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

std::string note_of(const LayerSpec& spec) {
  return std::holds_alternative<PlainSpec>(spec) ? "first-order update" : "";
}

}  // namespace

LayerLoad layer_load(const LayerSpec& spec, DType dtype) {
  LayerLoad load;
  load.bytes = (weight_numel(spec) + bias_numel(spec) + statistic_numel(spec)) *
               static_cast<std::int64_t>(size_of(dtype));
  if (has_factors(spec)) {
    const auto a = static_cast<double>(a_dim(spec)), g = static_cast<double>(g_dim(spec));
    load.flops = a * a * a + g * g * g + 2 * a * g * (a + g);
  }
  return load;
}

std::vector<int> assign(std::span<const LayerLoad> loads, int world_size) {
  DKFAC_CHECK(world_size >= 1, "[assign] world_size is ", world_size, "; it must be >= 1");
  std::vector<int> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int i, int j) {
    const LayerLoad &a = loads[at(i)], &b = loads[at(j)];
    if (a.flops != b.flops) return a.flops > b.flops;
    return a.flops == 0 && a.bytes > b.bytes;
  });
  std::vector<LayerLoad> ranks(at(world_size));
  std::vector<int> owners(loads.size(), 0);
  for (const int i : order) {
    const LayerLoad& load = loads[at(i)];
    const int owner = least_loaded(ranks, load.flops == 0);
    owners[at(i)] = owner;
    ranks[at(owner)].flops += load.flops;
    ranks[at(owner)].bytes += load.bytes;
  }
  return owners;
}

std::string describe_assignment(std::span<const std::string> names,
                                std::span<const LayerSpec> specs, std::span<const int> owners,
                                int world_size, DType dtype) {
  DKFAC_CHECK(names.size() == specs.size() && names.size() == owners.size(),
              "[describe_assignment] ", names.size(), " names, ", specs.size(), " specs and ",
              owners.size(), " owners; there must be one of each per layer");
  const auto element = static_cast<double>(size_of(dtype));
  double total_flops = 0;
  for (const LayerSpec& spec : specs) total_flops += layer_load(spec, dtype).flops;
  std::vector<double> flops(at(world_size), 0), state(at(world_size), 0);
  double staging = 0, parameters = 0;
  std::vector<Row> rows{{"layer", "shape", "owner", "A", "G", "statistics", "work", "note"}};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const LayerSpec& spec = specs[i];
    const double own = layer_load(spec, dtype).flops;
    const double statistic = element * static_cast<double>(statistic_numel(spec));
    flops[at(owners[i])] += own;
    state[at(owners[i])] += element * static_cast<double>(state_numel(spec));
    staging += statistic;
    parameters += static_cast<double>(weight_numel(spec) + bias_numel(spec));
    const bool factors = has_factors(spec);
    rows.push_back({names[i], describe(spec), std::to_string(owners[i]),
                    factors ? std::to_string(a_dim(spec)) : "-",
                    factors ? std::to_string(g_dim(spec)) : "-",
                    statistic > 0 ? human_bytes(statistic) : "-",
                    factors ? percent(own, total_flops) : "-", note_of(spec)});
  }
  std::ostringstream out;
  out << render(rows) << '\n';
  std::vector<Row> per_rank{
      {"rank", "layers", "work", "averages + inverses", "staging", "sum", ""}};
  for (int r = 0; r < world_size; ++r)
    per_rank.push_back({std::to_string(r), std::to_string(std::ranges::count(owners, r)),
                        percent(flops[at(r)], total_flops), human_bytes(state[at(r)]),
                        human_bytes(staging), human_bytes(state[at(r)] + staging), ""});
  out << render(per_rank) << '\n'
      << names.size() << " layers, " << static_cast<std::int64_t>(parameters) << " parameters, "
      << human_bytes(staging) << " of statistics in " << dtype << " per exchange\n";
  return std::move(out).str();
}

}  // namespace dkfac::kfac
