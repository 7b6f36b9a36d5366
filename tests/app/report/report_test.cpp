// The page: well-formed, self-contained, complete, safe against any text.

#include "app/shared/report.h"

#include <cmath>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "app/fake_runs.h"
#include "app/markup.h"
#include "app/report/format.h"
#include "app/report/sections.h"

namespace dkfac::app {
namespace {

using testing::contains;
using testing::failed_run;
using testing::fake_group;
using testing::Markup;

std::string page(const std::vector<RunGroup>& groups, std::optional<double> target,
                 const std::string& title = "title") {
  return html_report(groups, summarize(groups, {target}), title);
}

TEST(Markup, RefusesWhatIsNotWellFormed) {
  EXPECT_EQ(Markup("<a b=\"1\"><c/>x &amp; y</a>").problem(), "");
  for (const char* bad :
       {"<a>", "<a></b>", "</a>", "<a b=1></a>", "<a b=\"1\" b=\"2\"/>", "<a>&x</a>",
        "<a b=\"<\"/>", "<a/><b/>", "text<a/>", "<a><b id=\"x\"/><b id=\"x\"/></a>", "<a b=\"1/>",
        "<a>\x01</a>", "<a b=\"1\"c=\"2\"/>"}) {
    EXPECT_NE(Markup(bad).problem(), "") << bad;
  }
}

TEST(Escape, LeavesNothingThatMarkupReads) {
  EXPECT_EQ(escape("a<b>&\"c\"'d'"), "a&lt;b&gt;&amp;&quot;c&quot;&#39;d&#39;");
  EXPECT_EQ(escape("caf\u00e9\n\t"), "caf\u00e9\n\t");
  EXPECT_EQ(escape(std::string("\0\x1b[0m\x7f", 6)), "\uFFFD\uFFFD[0m\uFFFD");
}

std::vector<RunGroup> three_groups() {
  std::vector<RunGroup> groups{fake_group("kfac", {{0.8, 0.9, 0.91}, {0.8, 0.88, 0.92}}),
                               fake_group("sgd", {{0.5, 0.7, 0.8, 0.9}, {0.6, 0.7, 0.8, 0.8, 0.9}}),
                               fake_group("lars", {{0.4, 0.5, 0.6}, {0.4, 0.5, 0.6}})};
  for (RunGroup& group : groups) {
    for (RunResult& run : group.runs) {
      run.activity_seconds = {{"forward", 1.0}, {"backward", 2.0}, {"evaluation", 50.0}};
      run.configuration = "[run]\nname = \"" + group.name + "\"\n[optimizer]\ntype = \"" +
                          group.name + "\"\n[train]\nglobal_batch = 64\n";
    }
  }
  return groups;
}

TEST(HtmlReport, IsWellFormedAndHasEveryPart) {
  const Markup markup(page(three_groups(), 0.9));
  EXPECT_EQ(markup.problem(), "");
  for (const char* part : {"Comparison", "Curves", "Where a step spends its time",
                           "Settings and runs", "Every run", "Effective configuration of sgd",
                           "in the fewest epochs", "lars never reached the target", "1.2.3"}) {
    EXPECT_TRUE(contains(markup.text(), part)) << part;
  }
  EXPECT_EQ(markup.count("figure"), 4);
  EXPECT_FALSE(contains(markup.text(), "Failed runs"));
}

TEST(HtmlReport, TablesScrollWhereTheWindowIsNarrow) {
  const std::string html = page(three_groups(), 0.9);
  const auto count = [&](const std::string& part) {
    int found = 0;
    for (auto at = html.find(part); at != std::string::npos; at = html.find(part, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<table"), 4);
  EXPECT_EQ(count("<div class=\"wide\"><table"), count("<table"));
  EXPECT_EQ(count(".wide{overflow-x:auto"), 1);
}

TEST(HtmlReport, LoadsAndRunsNothing) {
  const std::string html = page(three_groups(), 0.9);
  EXPECT_FALSE(std::regex_search(html, std::regex("<script|<link|<img|<iframe|@import|src=|href=|"
                                                  "https?://|javascript:|\\son[a-z]+=\"")));
  EXPECT_TRUE(contains(html, "prefers-color-scheme:dark"));
  EXPECT_TRUE(contains(html, "@media print"));
  EXPECT_TRUE(contains(html, "width=device-width"));
}

TEST(HtmlReport, EscapesEveryTextThatComesFromOutside) {
  const std::string evil = "</style><script>alert(\"&'1'\")</script>";
  std::vector<RunGroup> groups = three_groups();
  for (RunGroup& group : groups) {
    group.name = evil + group.name;
    for (RunResult& run : group.runs) {
      run.configuration += "# " + evil + "\nkey" + evil + " = \"" + group.name + "\"\n";
      run.activity_seconds[evil] = 1.0;
      run.model = run.data = run.version = evil;
    }
    group.runs.push_back(failed_run(evil, 9));
    group.runs.push_back(failed_run("", 10));
    group.runs.back().status = evil;
  }
  const std::string html = page(groups, 0.9, evil);
  EXPECT_EQ(Markup(html).problem(), "");
  EXPECT_FALSE(contains(html, "<script"));
  EXPECT_FALSE(contains(html, "&#39;1&#39;&quot;)</script"));
  EXPECT_EQ(Markup(svg_curves(groups, summarize(groups, {0.9}))).problem(), "");
}

TEST(HtmlReport, NamesAWinnerOnlyWhereADifferenceIsShown) {
  const auto page_of = [](double low, double high) {
    return page({fake_group("a", {{0.90}, {0.92}}), fake_group("b", {{low}, {high}})}, {});
  };
  const std::string shown = page_of(0.85, 0.87), open = page_of(0.85, 0.91);
  EXPECT_TRUE(contains(shown, "<p class=\"lead\">a ends with the highest test accuracy"));
  EXPECT_TRUE(contains(shown, "class=\"best\""));
  EXPECT_TRUE(contains(
      open, "<p class=\"lead\">No difference shown in final accuracy and time of a step."));
  EXPECT_FALSE(contains(open, "ighest")) << open;
  EXPECT_FALSE(contains(open, "class=\"best\""));
}

TEST(HtmlReport, MarksTheBestOfEachColumn) {
  const std::string html = page(three_groups(), 0.9);
  EXPECT_TRUE(std::regex_search(html, std::regex("<td data-head=\"epochs to 90 %\" class=\"best\">"
                                                 "<span><span class=\"whole\">2.5</span> "
                                                 "<span class=\"whole\">\\[2\u20133\\]</span>"
                                                 "</span></td>")))
      << html;
  const std::string single = page({three_groups()[0]}, 0.9);
  EXPECT_FALSE(contains(single, "class=\"best\"")) << "no other run to be better than";
  EXPECT_TRUE(contains(single, "<h2>Result</h2>"));
}

TEST(HtmlReport, ShowsFailedRunsWithTheirError) {
  std::vector<RunGroup> groups = three_groups();
  groups[1].runs.push_back(failed_run("[kfac] factor of <conv1>; raise damping", 7));
  groups[1].runs.push_back(failed_run("", 8));
  const Markup markup(page(groups, 0.9));
  EXPECT_EQ(markup.problem(), "");
  EXPECT_TRUE(contains(markup.text(), "Failed runs"));
  EXPECT_TRUE(contains(markup.text(), "[kfac] factor of &lt;conv1&gt;; raise damping"));
  EXPECT_TRUE(contains(markup.text(), "no error message"));
  EXPECT_TRUE(contains(markup.text(), "4, 2 failed"));
}

TEST(HtmlReport, SurvivesEmptyAndBrokenResults) {
  RunGroup broken = fake_group("nan", {{NAN, NAN}});
  broken.runs[0].final_accuracy = broken.runs[0].seconds_per_step = NAN;
  broken.runs[0].epochs[0].train_seconds = INFINITY;
  broken.runs[0].activity_seconds = {{"forward", NAN}, {"inverse", INFINITY}};
  for (const std::vector<RunGroup>& groups : {std::vector<RunGroup>{},
                                              {{"empty", {}}},
                                              {{"new", {RunResult{}}}},
                                              {broken},
                                              {broken, fake_group("good", {{0.9}})}}) {
    for (const auto& target : {std::optional<double>(), std::optional(0.9)}) {
      EXPECT_EQ(Markup(page(groups, target)).problem(), "");
      EXPECT_EQ(Markup(svg_curves(groups, summarize(groups, {target}))).problem(), "");
    }
  }
}

TEST(StepActivities, AreMeansOfAStepWithoutEvaluationInOrder) {
  std::vector<RunGroup> groups{fake_group("a", {{0.5}, {0.5}})};
  for (RunResult& run : groups[0].runs) run.steps = 10;
  groups[0].runs[0].activity_seconds = {
      {"update", 1}, {"data", 2}, {"evaluation", 9}, {"other", 1}};
  groups[0].runs[1].activity_seconds = {{"update", 3}, {"data", 2}, {"inverse", 1}};
  const StepActivities step = step_activities(groups)[0];
  std::vector<std::string> names;
  for (const auto& [activity, seconds] : step.activities) names.push_back(activity);
  EXPECT_EQ(names, (std::vector<std::string>{"data", "inverse", "update", "other"}));
  EXPECT_DOUBLE_EQ(step.activities[0].second, 0.2);
  EXPECT_DOUBLE_EQ(step.activities[1].second, 0.05) << "no time in the run that lacks it";
  EXPECT_DOUBLE_EQ(step.activities[2].second, 0.2);
  EXPECT_DOUBLE_EQ(step.total, 0.5);
}

TEST(ActivityBars, AreAllToOneScale) {
  std::vector<RunGroup> groups{fake_group("a", {{0.5}}), fake_group("b", {{0.5}})};
  groups[0].runs[0].activity_seconds = {{"forward", 1.0}, {"backward", 3.0}};
  groups[1].runs[0].activity_seconds = {{"forward", 1.0}};
  const std::string bars = activity_bars(groups);
  EXPECT_TRUE(contains(bars, "width:75.000%"));
  EXPECT_TRUE(contains(bars, "100 ms, 25.0 % of the step"));
  EXPECT_TRUE(contains(bars, "100 ms, 100.0 % of the step"));
  EXPECT_EQ(activity_bars(std::vector<RunGroup>{fake_group("a", {{0.5}})}), "")
      << "nothing measured";
}

TEST(LoadingOfPhotographs, IsShownWhereThereAreSome) {
  std::vector<RunGroup> groups{fake_group("a", {{0.5, 0.6}}), fake_group("b", {{0.5}})};
  EXPECT_EQ(loading_section(groups), "");
  auto& epochs = groups[0].runs[0].epochs;
  epochs[0].loading = {.wait_fraction = 0.5, .images = 300, .decode_s = 2, .resize_s = 1, .bad = 1};
  epochs[1].loading = {.wait_fraction = 0.2, .images = 300, .decode_s = 2, .resize_s = 1, .bad = 2};
  groups[0].runs[0].bad_photos = {"x<y.jpg: it ends early"};
  const std::string text = loading_section(groups);
  EXPECT_TRUE(contains(text,
                       "<td>35.0</td><td>100</td><td>-</td><td>150</td><td>300</td><td>-</td>"
                       "<td>2</td>"))
      << text;
  EXPECT_TRUE(contains(text, "x&lt;y.jpg: it ends early"));
  EXPECT_FALSE(contains(text, ">b</th>"));
}

TEST(Settings, AreReadLineByLine) {
  const auto settings = settings_of(
      "# a comment\n[run]\nname = \"a = b\"\n\n[ lr ]\nknots = [[0, 1], [2, 3]]\nlr=0.1\r\nnoise");
  EXPECT_EQ(settings,
            (std::map<std::string, std::string>{
                {"run.name", "\"a = b\""}, {"lr.knots", "[[0, 1], [2, 3]]"}, {"lr.lr", "0.1"}}));
  EXPECT_TRUE(settings_of("").empty());
}

TEST(Settings, TableShowsOnlyWhereGroupsDiffer) {
  std::vector<RunGroup> groups = three_groups();
  groups[0].runs[0].configuration += "[extra]\nkey = 1\n";
  const std::string section = settings_section(groups);
  EXPECT_TRUE(contains(section, "<code>optimizer.type</code>"));
  EXPECT_TRUE(
      contains(section, "<code>extra.key</code></th><td><code>1</code></td><td><code>\u2013"));
  EXPECT_FALSE(contains(section, "<code>train.global_batch</code>")) << "the same in all";
  EXPECT_FALSE(contains(section, "<code>run.name</code>")) << "a label";
}

TEST(HtmlReport, ShowsTheIntervalsOfTheAdaptiveRuleAndOfNoOther) {
  std::vector<RunGroup> groups{fake_group("fixed", {{0.5, 0.9}}),
                               fake_group("adaptive", {{0.5, 0.9}, {0.4, 0.8}})};
  EXPECT_EQ(page(groups, {}).find("Staleness"), std::string::npos);
  groups[0].runs[0].curvature.a_all = 5;
  for (RunResult& run : groups[1].runs) {
    CurvatureResult& c = run.curvature;
    c.a_all = c.g_all = 8;
    c.a_renewed = 2;
    c.g_renewed = 4;
    c.bytes = 60;
    c.bytes_skipped = 20;
    c.flops = 15;
    c.flops_skipped = 45;
    c.intervals = {{1, 1, 1, 0}, {2, 1.5, 1, 0}, {3, 40, 2, 0}};
  }
  const std::string html = page(groups, {});
  EXPECT_EQ(Markup(html.substr(html.find("<html"))).problem(), "");
  EXPECT_NE(html.find("<h2>Staleness</h2>"), std::string::npos);
  const std::string section = html.substr(html.find("<h2>Staleness</h2>"));
  for (const char* words :
       {"adaptive", "25.00", "50.00", "75.00", "operations saved", "Steps between two refreshes",
        "A, step 3: 40.0 steps", "G, step 3: 2.00 steps"})
    EXPECT_NE(section.find(words), std::string::npos) << words;
  EXPECT_EQ(section.substr(0, section.find("</section>")).find("BatchNorm, step"),
            std::string::npos)
      << "a kind that is not there has no line";
}

}  // namespace
}  // namespace dkfac::app
