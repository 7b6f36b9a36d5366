#include <algorithm>
#include <set>

#include <fmt/core.h>

#include "app/record/run_summary.h"
#include "app/report/findings.h"
#include "app/report/palette.h"
#include "app/report/sections.h"
#include "app/report/svg.h"
#include "app/report/table.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

std::string section(const std::string& heading, const std::string& body) {
  if (body.empty()) return {};
  return fmt::format("<section>\n<h2>{}</h2>\n{}</section>\n", escape(heading), body);
}

/// One card for each respect: the winners, if any, its value, and the next groups.
std::string cards(const Comparison& comparison) {
  const bool alone = comparison.groups.size() == 1;
  std::string out;
  for (const Finding& finding : findings(comparison, Dash::en)) {
    out += fmt::format("<div class=\"card\"><h3>{}</h3>", with_units(escape(finding.what)));
    if (!alone) out += "<p class=\"winner\">";
    for (const std::size_t i : finding.winners)
      if (!alone)
        out += fmt::format("<span class=\"who\">{}{}</span>\n", swatch(i),
                           escape(comparison.groups[i].name));
    if (finding.winners.empty()) out += "no difference shown";
    out += fmt::format("{}<p class=\"{}\">{}</p>", alone ? "" : "</p>", alone ? "winner" : "value",
                       with_units(escape(finding.value)));
    if (!finding.next.empty())
      out += "<p class=\"next\">next: " + with_units(escape(finding.next)) + "</p>";
    out += "</div>\n";
  }
  return out.empty() ? out : "<div class=\"cards\">\n" + out + "</div>\n";
}

std::string caveat_list(const Comparison& comparison) {
  std::string out;
  for (const std::string& caveat : caveats(comparison)) out += "<li>" + escape(caveat) + "</li>\n";
  return out.empty() ? out : "<ul class=\"caveats\">\n" + out + "</ul>\n";
}

std::string first_sentence(const Comparison& comparison) {
  const std::string text = lead(comparison, Dash::en);
  return text.empty() ? text : "<p class=\"lead\">" + with_units(escape(text)) + "</p>\n";
}

std::string comparison_section(const Comparison& comparison) {
  Table table = table_of(comparison, Dash::en);
  for (std::size_t i = 0; i < table.rows.size(); ++i) table.rows[i].front().style = i;
  return html_table(table, Look::folds) +
         "<p class=\"note\">Mean [smallest\u2013largest] over seeds; marked are the best of a "
         "column, where a difference is shown. To the target: the first epoch after which test "
         "accuracy, or top-5 accuracy "
         "where a "
         "target is given for it, is at least the target. "
         "Seconds are of training, without evaluation. Step ratio: to the cheapest step.</p>\n";
}

std::string intervals(const Comparison& comparison) {
  const std::string table = html_table(interval_table(comparison), Look::scrolls);
  return table.empty() ? table : table + "<p class=\"note\">" + escape(kIntervalNote) + "</p>\n";
}

std::string curves(std::span<const RunGroup> groups, const Comparison& comparison) {
  std::vector<std::string> names;
  for (const RunGroup& group : groups) names.push_back(group.name);
  std::string out = legend(names) + "<div class=\"plots\">\n";
  int number = 0;
  std::vector<Measure> measures{Measure::test_accuracy, Measure::train_loss};
  for (const Measure top5 : {Measure::test_top5, Measure::train_top5})
    if (!points_of(curves_of(groups, top5, Against::epochs)).empty()) measures.push_back(top5);
  for (const Measure measure : measures)
    for (const Against against : {Against::epochs, Against::seconds}) {
      const Plot plot = make_plot(groups, comparison, measure, against);
      out += "<figure>" + inline_svg(plot, fmt::format("plot{}", ++number)) + "</figure>\n";
    }
  return out +
         "</div>\n<p class=\"note\">Lines: mean over seeds; bands: smallest to largest. Seconds "
         "are the seeds' mean at equal epochs. Diamonds: where the target is reached, on average. "
         "Point at a line for its numbers.</p>\n";
}

std::string failures(std::span<const RunGroup> groups) {
  std::string out;
  for (const NamedRun& run : runs_of(groups))
    if (run->status == "failed")
      out += fmt::format("<li><b>{}</b>, seed {}, after {} steps: <code>{}</code></li>\n",
                         escape(run.group), run->seed, run->steps,
                         escape(run->error.empty() ? "no error message" : run->error));
  return out.empty() ? out : "<ul class=\"failed\">\n" + out + "</ul>\n";
}

std::string run_list(std::span<const RunGroup> groups) {
  Table table;
  const std::vector<NamedRun> runs = runs_of(groups);
  const auto column = [&](const char* head, const auto& read) {
    add_column(table, {"", head}, runs, [&](const NamedRun& run) { return read(*run.run); });
  };
  const auto number = [](const std::optional<double>& x) { return x ? three_digits(*x) : "-"; };
  using Run = const RunResult&;
  add_column(table, {"", "configuration"}, runs, &NamedRun::group);
  column("seed", [](Run run) { return fmt::format("{}", run.seed); });
  column("status", [](Run run) { return run.status; });
  column("epochs", [](Run run) { return grouped(std::ssize(run.epochs)); });
  column("steps", [](Run run) { return grouped(run.steps); });
  column("steps skipped", [](Run run) { return grouped(run.skipped_steps); });
  column("epochs to", [&](Run run) { return number(run.epochs_to_target); });
  column("seconds to", [&](Run run) { return number(run.seconds_to_target); });
  column("final accuracy, %",
         [](Run run) { return any_evaluated(run) ? fixed(100 * run.final_accuracy, 2) : "-"; });
  column("final top-5, %", [](Run run) {
    const auto last = std::ranges::find_if(run.epochs.rbegin(), run.epochs.rend(),
                                           [](const auto& epoch) { return epoch.evaluated; });
    const bool known = last != run.epochs.rend() && last->test_top5;
    return known ? fixed(100 * *last->test_top5, 2) : "-";
  });
  column("seconds of training", [](Run run) { return three_digits(run.train_seconds); });
  const auto priced = [](const NamedRun& run) { return run->price_per_hour > 0; };
  if (std::ranges::any_of(runs, priced)) {
    column("dollars", [&](Run run) { return number(run.dollars(run.total_seconds)); });
    column("dollars to", [&](Run run) { return number(run.dollars(run.seconds_to_target)); });
  }
  column("images per second", [](Run run) {
    return run.images_per_second > 0 ? three_digits(run.images_per_second) : "-";
  });
  return "<details><summary>Every run</summary>" + html_table(table, Look::scrolls) +
         "</details>\n";
}

std::string versions(std::span<const RunGroup> groups) {
  std::set<std::string> seen;
  for (const NamedRun& run : runs_of(groups))
    if (!run->version.empty()) seen.insert(run->version);
  return join_names({seen.begin(), seen.end()});
}

}  // namespace

std::string html_report(std::span<const RunGroup> groups, const Comparison& comparison,
                        const std::string& title) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta "
      "name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<meta "
      "name=\"color-scheme\" content=\"light dark\"/>\n<title>{0}</title>\n<style>\n{1}{2}{3}"
      "</style>\n</head>\n<body>\n<main>\n<header>\n<h1>{0}</h1>\n<p class=\"caption\">{4}</p>\n",
      escape(title), page_css(), picture_css(), activity_css(), escape(comparison.caption));
  out += first_sentence(comparison) + "</header>\n" + cards(comparison) + caveat_list(comparison);
  out += section("Failed runs", failures(groups));
  out += section(comparison.groups.size() > 1 ? "Comparison" : "Result",
                 comparison_section(comparison));
  out += section("Intervals over seeds", intervals(comparison));
  out += section("Curves", curves(groups, comparison));
  out += section("Where a step spends its time", activity_bars(groups));
  out += section("Loading of photographs", loading_section(groups));
  out += section("Staleness", staleness_section(groups));
  out += section("Settings and runs", settings_section(groups) + run_list(groups));
  return out + "<footer>dkfac " + escape(versions(groups)) +
         "</footer>\n</main>\n</body>\n</html>\n";
}

}  // namespace dkfac::app
