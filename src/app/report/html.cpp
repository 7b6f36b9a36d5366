#include <algorithm>
#include <array>
#include <set>

#include <fmt/core.h>

#include "app/report/findings.h"
#include "app/report/format.h"
#include "app/report/page_css.h"
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

/// Numbers and their units are not parted by a line break.
std::string with_units(std::string text) {
  for (const std::string_view unit : {" %", " s)", " ms", " s;"}) {
    for (auto at = text.find(unit); at != std::string::npos; at = text.find(unit, at + 2)) {
      text.replace(at, 1, "\u00A0");
    }
  }
  return text;
}

std::string winner_names(const Comparison& comparison, const Finding& finding) {
  std::string out;
  for (const std::size_t i : finding.winners) {
    out += fmt::format("<span class=\"who\">{}{}</span>\n", swatch(i),
                       escape(comparison.groups[i].name));
  }
  return out;
}

/// One card for each respect: who wins, with what, and who comes next.
std::string cards(const Comparison& comparison) {
  const bool alone = comparison.groups.size() == 1;
  std::string out;
  for (const Finding& finding : findings(comparison, Dash::en)) {
    const std::string what =
        alone ? capitalized(finding.what.substr(finding.what.find(' ') + 1)) : finding.what;
    out += fmt::format("<div class=\"card\"><h3>{}</h3>", with_units(escape(what)));
    if (!alone) out += "<p class=\"winner\">" + winner_names(comparison, finding) + "</p>";
    out += fmt::format("<p class=\"{}\">{}</p>", alone ? "winner" : "value",
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

/// All winners in one sentence: what follows each other and has the same winners is said once.
std::string sentence(const Comparison& comparison) {
  if (comparison.groups.size() < 2) return {};
  std::string out;
  std::vector<std::string> names, claims;
  const auto flush = [&] {
    if (claims.empty()) return;
    out += fmt::format("{}<b>{}</b> {}", out.empty() ? "" : "; ", escape(join_names(names)),
                       with_units(escape(join_names(claims))));
    claims.clear();
  };
  for (const Finding& finding : findings(comparison, Dash::en)) {
    std::vector<std::string> winners;
    for (const std::size_t i : finding.winners) winners.push_back(comparison.groups[i].name);
    if (winners != names) flush();
    names = std::move(winners);
    const std::string doubt =
        finding.overlaps.empty() ? "" : "; its range overlaps with that of " + finding.overlaps;
    claims.push_back(fmt::format("{} ({}{})",
                                 names.size() == 1 ? finding.claim : finding.claim_plural,
                                 finding.value, doubt));
  }
  flush();
  return out.empty() ? out : "<p class=\"lead\">" + out + ".</p>\n";
}

/// A mean and its range may stand on two lines; neither is parted itself.
std::string in_two_lines(const std::string& text) {
  const auto unparted = [](std::string_view part) {
    return "<span class=\"whole\">" + escape(part) + "</span>";
  };
  const auto range = text.find(" [");
  if (range == std::string::npos) return unparted(text);
  return "<span>" + unparted(text.substr(0, range)) + " " + unparted(text.substr(range + 1)) +
         "</span>";
}

std::string comparison_table(const Comparison& comparison) {
  const Table table = table_of(comparison, Dash::en);
  std::string out = "<div class=\"wide\"><table class=\"main\"><thead><tr>";
  for (const Head& head : table.heads) {
    out += "<th scope=\"col\">" + with_units(escape(head.line())) + "</th>";
  }
  out += "</tr></thead>\n<tbody>\n";
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    out += fmt::format("<tr><th scope=\"row\">{}{}</th>", swatch(r),
                       escape(table.rows[r].front().text));
    for (std::size_t c = 1; c < table.rows[r].size(); ++c) {
      const Cell& cell = table.rows[r][c];
      out += fmt::format("<td data-head=\"{}\"{}>{}</td>", escape(table.heads[c].line()),
                         cell.best ? " class=\"best\"" : "", in_two_lines(cell.text));
    }
    out += "</tr>\n";
  }
  return out +
         "</tbody></table></div>\n<p class=\"note\">Mean [smallest\u2013largest] over seeds; the "
         "best of "
         "a "
         "column is marked. To the target: the first epoch after which test accuracy is at least "
         "the "
         "target. Seconds are of training, without evaluation. Step ratio: to the cheapest "
         "step.</p>\n";
}

std::string intervals(const Comparison& comparison) {
  const Table table = interval_table(comparison);
  if (table.rows.empty()) return {};
  std::string out = "<div class=\"wide\"><table><thead><tr>";
  for (const Head& head : table.heads)
    out += "<th scope=\"col\">" + with_units(escape(head.line())) + "</th>";
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr><th scope=\"row\">" + escape(row.front().text) + "</th>";
    for (std::size_t c = 1; c < row.size(); ++c) out += "<td>" + escape(row[c].text) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n<p class=\"note\">" + escape(kIntervalNote) + "</p>\n";
}

std::string legend(std::span<const RunGroup> groups) {
  std::string out = "<p class=\"legend\">";
  for (std::size_t i = 0; i < groups.size(); ++i) {
    out += fmt::format("<span>{}{}</span>\n", swatch(i), escape(groups[i].name));
  }
  return out + "</p>\n";
}

std::string curves(std::span<const RunGroup> groups, const Comparison& comparison) {
  std::string out = legend(groups) + "<div class=\"plots\">\n";
  int number = 0;
  for (const Measure measure : {Measure::test_accuracy, Measure::train_loss}) {
    for (const Against against : {Against::epochs, Against::seconds}) {
      const Plot plot = make_plot(groups, comparison, measure, against);
      out += "<figure>" + inline_svg(plot, fmt::format("plot{}", ++number)) + "</figure>\n";
    }
  }
  return out +
         "</div>\n<p class=\"note\">Lines: mean over seeds; bands: smallest to largest. Seconds "
         "are "
         "the seeds' mean at equal epochs. Diamonds: where the target is reached, on average. "
         "Point "
         "at a line for its numbers.</p>\n";
}

std::string failures(std::span<const RunGroup> groups) {
  std::string out;
  for (const RunGroup& group : groups) {
    for (const RunResult& run : group.runs) {
      if (run.status != "failed") continue;
      out += fmt::format("<li><b>{}</b>, seed {}, after {} steps: <code>{}</code></li>\n",
                         escape(group.name), run.seed, run.steps,
                         escape(run.error.empty() ? "no error message" : run.error));
    }
  }
  return out.empty() ? out : "<ul class=\"failed\">\n" + out + "</ul>\n";
}

std::string optional_text(const std::optional<double>& value) {
  return value ? three_digits(*value) : "-";
}

std::string run_row(const std::string& group, const RunResult& run) {
  std::optional<double> top5;
  if (!run.epochs.empty()) top5 = run.epochs.back().test_top5;
  const std::array<std::string, 11> cells{
      fmt::format("{}", run.seed),          run.status,
      grouped(std::ssize(run.epochs)),      grouped(run.steps),
      grouped(run.skipped_steps),           optional_text(run.epochs_to_target),
      optional_text(run.seconds_to_target), fixed(100 * run.final_accuracy, 2),
      top5 ? fixed(100 * *top5, 2) : "-",   three_digits(run.train_seconds),
      three_digits(run.images_per_second),
  };
  std::string out = "<tr><th scope=\"row\">" + escape(group) + "</th>";
  for (const std::string& cell : cells) out += "<td>" + escape(cell) + "</td>";
  return out + "</tr>\n";
}

std::string run_list(std::span<const RunGroup> groups) {
  constexpr std::array<const char*, 12> kHeads{"configuration",
                                               "seed",
                                               "status",
                                               "epochs",
                                               "steps",
                                               "steps skipped",
                                               "epochs to",
                                               "seconds to",
                                               "final accuracy, %",
                                               "final top-5, %",
                                               "seconds of training",
                                               "images per second"};
  std::string out = "<details><summary>Every run</summary><div class=\"wide\"><table><thead><tr>";
  for (const char* head : kHeads) out += fmt::format("<th scope=\"col\">{}</th>", head);
  out += "</tr></thead>\n<tbody>\n";
  for (const RunGroup& group : groups) {
    for (const RunResult& run : group.runs) out += run_row(group.name, run);
  }
  return out + "</tbody></table></div></details>\n";
}

std::string versions(std::span<const RunGroup> groups) {
  std::set<std::string> seen;
  for (const RunGroup& group : groups) {
    for (const RunResult& run : group.runs) {
      if (!run.version.empty()) seen.insert(run.version);
    }
  }
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
      escape(title), page_css(), picture_css(), phase_css(), escape(comparison.caption));
  out += sentence(comparison) + "</header>\n";
  out += cards(comparison) + caveat_list(comparison);
  out += section("Failed runs", failures(groups));
  out +=
      section(comparison.groups.size() > 1 ? "Comparison" : "Result", comparison_table(comparison));
  out += section("Intervals over seeds", intervals(comparison));
  out += section("Curves", curves(groups, comparison));
  out += section("Where a step spends its time", phase_bars(groups));
  out += section("Loading of photographs", loading_section(groups));
  out += section("Staleness", staleness_section(groups));
  out += section("Settings and runs", settings_section(groups) + run_list(groups));
  out += "<footer>dkfac " + escape(versions(groups)) + "</footer>\n</main>\n</body>\n</html>\n";
  return out;
}

}  // namespace dkfac::app
