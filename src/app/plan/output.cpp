#include "app/plan/output.h"

#include <algorithm>

#include <fmt/core.h>

#include "app/logging/number_text.h"
#include "app/report/json.h"
#include "core/shared/index.h"

namespace dkfac::app::planning {

namespace {

constexpr double kMilli = 1e3, kPerMega = 1e-6, kPerGiga = 1e-9, kHour = 3600;

using Row = std::vector<std::string>;

std::string table(const std::vector<Row>& rows) { return lines_of(rows, FirstColumn::left) + "\n"; }

std::string ms(double seconds) { return three_digits(kMilli * seconds); }

std::string seconds_table(const Result& result) {
  std::vector<Row> rows{{"ms of a step", "mean", "of sgd", "slowest"}};
  for (std::size_t i = 0; i < kPhases; ++i)
    rows.front().emplace_back(name_of(static_cast<Phase>(i)));
  if (result.steps > 0) rows.front().emplace_back("hours");
  for (const Forecast& f : result.forecasts) {
    Row row{f.name, ms(f.seconds), fmt::format("{:.3f}", f.to_sgd), ms(f.slowest)};
    for (const double phase : f.phases) row.push_back(ms(phase));
    if (result.steps > 0) row.push_back(three_digits(result.steps * f.seconds / kHour));
    rows.push_back(std::move(row));
  }
  return table(rows);
}

std::string memory_text(const Forecast& f, const Processor& processor) {
  return three_digits(kPerGiga * f.memory) + (fits(f, processor) ? "" : " too much");
}

std::string resources_table(const Result& result) {
  std::vector<Row> rows{{"", "GB of a rank", "MB within node", "MB between", "ms of links",
                         "work max/mean", "binds", "adds most"}};
  for (const Forecast& f : result.forecasts)
    rows.push_back({f.name, memory_text(f, result.cluster.processor),
                    three_digits(kPerMega * f.sent.inner), three_digits(kPerMega * f.sent.outer),
                    ms(f.links), fmt::format("{:.2f}", f.balance), f.binds,
                    f.adds.empty() ? "-" : f.adds});
  return table(rows);
}

std::string scaling_table(const Result& result) {
  if (result.scaling.empty()) return {};
  std::vector<Row> rows{{"ms of a step, ranks"}};
  for (const Result::At& at : result.scaling) rows.front().push_back(std::to_string(at.ranks));
  for (const Forecast& f : result.forecasts) {
    Row row{f.name};
    for (const Result::At& at : result.scaling) {
      const auto found = std::ranges::find(at.forecasts, f.name, &Forecast::name);
      row.push_back(found == at.forecasts.end() ? "-" : ms(found->seconds));
    }
    rows.push_back(std::move(row));
  }
  return table(rows);
}

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::nccl:
      return "nccl";
    case Algorithm::direct:
      return "direct";
    case Algorithm::halving:
      return "halving";
    case Algorithm::host:
      break;
  }
  return "host";
}

std::string head(const Result& r) {
  const Cluster& c = r.cluster;
  return fmt::format(
      "{}, {} samples of a rank{}, {}, on {} ranks of {}, {} to a node\n"
      "links of a rank: {:.4g} GB/s and {:.3g} us within, {:.4g} GB/s and {:.3g} us between "
      "nodes; collectives: {}\n\n",
      r.network.name, r.network.batch * r.micro_batches,
      r.micro_batches > 1 ? fmt::format(" in {} parts", r.micro_batches) : "",
      name_of(r.network.compute), c.ranks, c.processor.name, c.per_node,
      kPerGiga * c.inner.bytes_per_s, 1e6 * c.inner.latency, kPerGiga * c.outer.bytes_per_s,
      1e6 * c.outer.latency, name_of(c.algorithm));
}

std::string capacity(const Processor& p) {
  return fmt::format("the {:.4g} GB of one {}", kPerGiga * p.memory, p.name);
}

/// What a rank cannot hold, and what would make it smaller.
std::string memory_note(const Result& r) {
  const Processor& p = r.cluster.processor;
  const auto too_large =
      std::ranges::count_if(r.forecasts, [&](const Forecast& f) { return !fits(f, p); });
  if (too_large == 0) return {};
  return fmt::format(
      "too much: {} of {} rows do not fit into {}; {}\n", too_large, r.forecasts.size(),
      capacity(p),
      r.steps > 0 ? "use more ranks, a larger train.micro_batches or a smaller train.global_batch"
                  : "use a smaller --batch");
}

std::string advice_text(const Result& r) {
  if (!r.budget) return {};
  if (!r.advice)
    return fmt::format(
        "no K-FAC adds at most {:.3g} % to the step of SGD on these ranks, even with inverses "
        "every 10,000 steps; the column 'adds most' names what it waits for\n",
        100 * *r.budget);
  const Advice& a = *r.advice;
  if (!a.fits)
    return fmt::format(
        "no K-FAC that adds at most {:.3g} % to the step of SGD fits into {}: {} would take {:.3f} "
        "of SGD, and {} GB\n",
        100 * *r.budget, capacity(r.cluster.processor), a.strategy.name, a.forecast.to_sgd,
        three_digits(kPerGiga * a.forecast.memory));
  return fmt::format(
      "at most {:.3g} % more than SGD: {}, statistics every {} and inverses every {} steps: "
      "{} ms, {:.3f} of SGD\n",
      100 * *r.budget, a.strategy.name, a.intervals.statistics, a.intervals.inverses,
      ms(a.forecast.seconds), a.forecast.to_sgd);
}

ordered_json json_of(const Forecast& f) {
  ordered_json phases = ordered_json::object();
  for (std::size_t i = 0; i < kPhases; ++i) phases[name_of(static_cast<Phase>(i))] = f.phases.at(i);
  return {{"name", f.name},
          {"seconds", f.seconds},
          {"to_sgd", f.to_sgd},
          {"slowest_seconds", f.slowest},
          {"phases", std::move(phases)},
          {"link_seconds", f.links},
          {"inner_bytes", f.sent.inner},
          {"outer_bytes", f.sent.outer},
          {"latency_seconds", f.sent.latency},
          {"memory_bytes", f.memory},
          {"balance", f.balance},
          {"binds", f.binds},
          {"adds", f.adds}};
}

ordered_json json_of(const std::vector<Forecast>& all) {
  ordered_json list = ordered_json::array();
  for (const Forecast& f : all) list.push_back(json_of(f));
  return list;
}

ordered_json json_of(const Link& link) {
  return {{"bytes_per_s", link.bytes_per_s}, {"latency", link.latency}};
}

}  // namespace

std::string text_of(const Result& r) {
  return head(r) + seconds_table(r) + resources_table(r) + scaling_table(r) + advice_text(r) +
         memory_note(r) + "phases: what is not hidden behind others. These are estimates: " +
         (r.cluster.processor.measured
              ? "each phase of one\nrank was measured, with the diagonal blocks of " +
                    std::to_string(r.cluster.ranks) +
                    " ranks, and what other ranks add is assumed\n"
              : "rates and their shares are assumed\n") +
         "(docs/scaling.md), and reading of data, evaluation and the host's own work are not in "
         "them\n";
}

std::string json_of(const Result& r) {
  const Cluster& c = r.cluster;
  ordered_json json{{"what", "plan"},
                    {"model", r.network.name},
                    {"batch", r.network.batch * r.micro_batches},
                    {"micro_batches", r.micro_batches},
                    {"compute", name_of(r.network.compute)},
                    {"ranks", c.ranks},
                    {"ranks_per_node", c.per_node},
                    {"device", c.processor.name},
                    {"device_memory_bytes", c.processor.memory},
                    {"inner", json_of(c.inner)},
                    {"outer", json_of(c.outer)},
                    {"collectives", name_of(c.algorithm)},
                    {"steps", r.steps},
                    {"strategies", json_of(r.forecasts)}};
  ordered_json scaling = ordered_json::array();
  for (const Result::At& at : r.scaling)
    scaling.push_back({{"ranks", at.ranks}, {"strategies", json_of(at.forecasts)}});
  json["scaling"] = std::move(scaling);
  if (r.advice && r.advice->fits)
    json["advice"] = {{"budget", *r.budget},
                      {"statistics_interval", r.advice->intervals.statistics},
                      {"inverse_interval", r.advice->intervals.inverses},
                      {"forecast", json_of(r.advice->forecast)}};
  return dump(json);
}

}  // namespace dkfac::app::planning
