#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "app/shared/config.h"
#include "app/sweep/points.h"
#include "app/sweep/state.h"
#include "app/sweep/table.h"

namespace dkfac::app {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

EpochRecord epoch_with(double test_accuracy, double train_loss) {
  EpochRecord record;
  record.test_accuracy = test_accuracy;
  record.train_loss = train_loss;
  return record;
}

/// Draws, scores, ranking, state and labels of a sweep, without a run.
TEST(SweepScores, AreThoseOfTheFirstEpochs) {
  const std::vector<EpochRecord> done{epoch_with(0.5, 3), epoch_with(0.75, 1), epoch_with(0.25, 2)};
  EXPECT_EQ(score_of(done, 2, Metric::test_accuracy, Over::last), 0.75);
  EXPECT_EQ(score_of(done, 3, Metric::test_accuracy, Over::last), 0.25);
  EXPECT_EQ(score_of(done, 3, Metric::test_accuracy, Over::best), 0.75);
  EXPECT_EQ(score_of(done, 3, Metric::test_accuracy, Over::mean), 0.5);  // Exact in binary.
  EXPECT_EQ(score_of(done, 3, Metric::train_loss, Over::best), 1);
  EXPECT_TRUE(std::isnan(score_of(done, 4, Metric::test_accuracy, Over::last)));
  EXPECT_TRUE(std::isnan(score_of({}, 0, Metric::test_accuracy, Over::mean)));
}

TEST(SweepScores, RankNansLastAndEqualsInOrder) {
  const std::vector<double> scores{0.5, kNan, 0.9, 0.5, kNan};
  EXPECT_EQ(ranked(scores, Metric::test_accuracy), (std::vector<std::size_t>{2, 0, 3, 1, 4}));
  EXPECT_EQ(ranked(scores, Metric::test_loss), (std::vector<std::size_t>{0, 3, 2, 1, 4}));
  EXPECT_EQ(survivors(18, 3), 6U);
  EXPECT_EQ(survivors(8, 3), 2U);
  EXPECT_EQ(survivors(1, 3), 1U);
}

TEST(SweepDraws, FillTheirRangeAndKeepToIt) {
  const Draw log{.kind = Draw::Kind::log_uniform, .low = 1e-3, .high = 1};
  const Draw whole{.low = 1, .high = 4, .whole = true};
  const Draw choice{.kind = Draw::Kind::choice, .choices = {"a", "b", "c"}};
  constexpr int kDraws = 3000;
  int lowest_decade = 0;
  std::set<std::string> integers, words;
  for (int i = 0; i < kDraws; ++i) {
    const double x = std::stod(drawn(log, 7, "lr.lr", i));
    ASSERT_TRUE(x >= 1e-3 && x <= 1) << x;
    lowest_decade += x < 1e-2 ? 1 : 0;
    integers.insert(drawn(whole, 7, "x", i));
    words.insert(drawn(choice, 7, "x", i));
  }
  // A third of them; five standard deviations of a binomial: 5 sqrt(3000 * 1/3 * 2/3) = 130.
  EXPECT_NEAR(lowest_decade, kDraws / 3, 130);
  EXPECT_EQ(integers, (std::set<std::string>{"1", "2", "3", "4"}));
  EXPECT_EQ(words, (std::set<std::string>{"a", "b", "c"}));
  EXPECT_EQ(drawn(log, 7, "lr.lr", 5), drawn(log, 7, "lr.lr", 5));
  EXPECT_NE(drawn(log, 7, "lr.lr", 0), drawn(log, 8, "lr.lr", 0));
  EXPECT_NE(drawn(log, 7, "lr.lr", 0), drawn(log, 7, "lr.lx", 0));
}

SweepState state_of(const std::vector<std::pair<std::int64_t, double>>& last) {
  SweepState state;
  state.spec.name = "s";
  state.spec.configs = {"a.toml"};
  state.spec.halving = Halving{1, 2};
  state.rungs = {1, 2};
  for (const auto& [epochs, score] : last) {
    SweepRun run;
    run.point.name = "run";
    run.point.config = "a.toml";
    run.point.epochs = 2;
    run.point.settings = {{"lr.lr", std::to_string(epochs) + std::to_string(state.runs.size())}};
    run.scores[epochs] = score;
    state.runs.push_back(run);
  }
  return state;
}

TEST(SweepState, RanksByEpochsThenScoreAndFailuresLast) {
  SweepState state = state_of({{1, 0.9}, {2, 0.8}, {2, 0.85}, {2, 0.99}});
  state.runs[3].status = "failed";
  EXPECT_EQ(ranking(state), (std::vector<std::size_t>{2, 1, 0, 3}));
}

TEST(SweepState, IsReadBackAndRefusedForAnotherPlan) {
  SweepState state = state_of({{1, 0.125}, {2, kNan}});
  state.rungs_done = 1;
  state.runs[0].status = "dropped";
  state.runs[1].status = "failed";
  state.runs[1].error = "ERROR \"quoted\"";
  SweepState again = state_of({{1, 0}, {2, 0}});
  for (SweepRun& run : again.runs) run.scores.clear();
  restore(to_json(state), "sweep.json", again);
  EXPECT_EQ(to_json(again), to_json(state));
  EXPECT_EQ(again.runs[1].error, state.runs[1].error);
  again.runs[0].point.settings["lr.lr"] = "3";
  EXPECT_THROW(restore(to_json(state), "sweep.json", again), InvalidArgument);
  EXPECT_THROW(restore("{", "sweep.json", again), DataError);
  EXPECT_THROW(restore("{\"format\": 1}", "sweep.json", again), DataError);
}

TEST(SweepState, IsRefusedForAConfigurationOfAnotherContent) {
  const auto with_rate = [](const std::string& rate) {
    SweepState state = state_of({{1, 0.125}});
    const std::vector<std::string> set{"lr.lr=" + rate};
    state.configurations = {to_toml(parse_config("", set, "a.toml"), Comments::none)};
    return state;
  };
  SweepState same = with_rate("0.5"), other = with_rate("0.25");
  std::string text = to_json(same);
  EXPECT_NO_THROW(restore(text, "sweep.json", same));
  std::string refusal;
  try {
    restore(text, "sweep.json", other);
  } catch (const InvalidArgument& error) {
    refusal = error.what();
  }
  for (const char* part : {"'a.toml' has changed", "'lr = 0.25' was 'lr = 0.5'", "--force"})
    EXPECT_NE(refusal.find(part), std::string::npos) << refusal;
  // A file of an earlier version has no configurations.
  const std::string key = "\"configurations\"";
  text.replace(text.find(key), key.size(), "\"other\"");
  EXPECT_NO_THROW(restore(text, "sweep.json", other));
}

TEST(SweepState, IsRefusedWhereNoSweepCouldHaveWrittenIt) {
  const std::string good = to_json(state_of({{1, 0.125}, {2, kNan}}));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const auto& [from, to] : {std::pair{R"("rungs_done": 0)", R"("rungs_done": -1)"},
                                 {R"("rungs_done": 0)", R"("rungs_done": 18446744073709551615)"},
                                 {R"("rungs_done": 0)", R"("rungs_done": 0.5)"},
                                 {R"("status": "waiting")", R"("status": "odd")"},
                                 {R"("1": 0.125)", R"("one": 0.125)"},
                                 {R"("1": 0.125)", R"("1x": 0.125)"},
                                 {R"("1": 0.125)", R"("-1": 0.125)"},
                                 {R"("1": 0.125)", R"("99999999999999999999": 0.125)"},
                                 {R"("1": 0.125)", R"("1": "high")"}}) {
    SweepState again = state_of({{1, 0}, {2, 0}});
    EXPECT_THROW(restore(changed(from, to), "sweep.json", again), DataError) << to;
  }
}

Trial of_epochs(std::int64_t epochs) {
  Trial trial;
  trial.epochs = epochs;
  return trial;
}

TEST(SweepRungs, GrowByEtaUpToTheEnd) {
  SweepSpec spec;
  using Rungs = std::vector<std::int64_t>;
  EXPECT_EQ(rungs_of(spec, {of_epochs(5), of_epochs(9)}), Rungs{9}) << "no run is stopped early";
  spec.halving = Halving{1, 3};
  EXPECT_EQ(rungs_of(spec, {of_epochs(9), of_epochs(9)}), (Rungs{1, 3, 9}));
  EXPECT_EQ(rungs_of(spec, {of_epochs(10)}), (Rungs{1, 3, 9, 10}));
  EXPECT_THROW((void)rungs_of(spec, {of_epochs(1)}), InvalidArgument) << "nothing would be dropped";
  EXPECT_THROW((void)rungs_of(spec, {of_epochs(9), of_epochs(8)}), InvalidArgument);
}

TEST(SweepOverrides, OfAPointComeBeforeThoseForAll) {
  SweepSpec spec;
  add_settings(spec, {"run.epochs=3", "lr.lr=1"});
  Trial point;
  point.settings = {{"lr.lr", "2"}};
  EXPECT_EQ(overrides_of(spec, point), (std::vector<std::string>{"run.epochs=3", "lr.lr=2"}));
  EXPECT_THROW(add_settings(spec, {"run.epochs"}), InvalidArgument);
}

TEST(SweepLabels, AreShortAndUnambiguous) {
  EXPECT_EQ(label_of({{"lr.lr", "1"}, {"optimizer.damping", "2"}}), "lr 1, damping 2");
  EXPECT_EQ(label_of({{"run.name", "a"}, {"model.name", "b"}}), "model.name b, run.name a");
  EXPECT_EQ(label_of({}), "as configured");
}

TEST(SweepSpec, TakesDottedKeysWithAndWithoutQuotes) {
  const SweepSpec quoted =
      parse_sweep("[sweep]\nconfig = \"a.toml\"\n[grid]\n\"lr.lr\" = [0.1]\n\"lr.power\" = [1]\n",
                  "s.toml", "there");
  const SweepSpec plain = parse_sweep(
      "[sweep]\nconfig = \"a.toml\"\n[grid]\nlr.lr = [0.1]\nlr.power = [1]\n", "s.toml", "there");
  EXPECT_EQ(quoted.grid, plain.grid);
  EXPECT_EQ(quoted.grid.at("lr.lr"), std::vector<std::string>{"0.1"});
  EXPECT_EQ(quoted.configs.front(), std::filesystem::path("there/a.toml"));
  EXPECT_EQ(quoted.name, "s");
}

TEST(SweepSpec, RefusesWhatIsNoSweep) {
  for (const char* text :
       {"", "[sweep]\nconfig = 3\n", "[sweep]\nconfig = \"a\"\nname = \"a/b\"\n",
        "[sweep]\nconfig = \"a\"\nname = \"..\"\n", "[sweep]\nconfig = \"a\"\nname = \".\"\n",
        "[sweep]\nconfig = \"a\"\n[random]\ncount = 0\n", "sweep = 3\n",
        "[sweep]\nconfig = \"a\"\n[halving]\neta = 1\n"})
    EXPECT_THROW((void)parse_sweep(text, "s.toml", "."), InvalidArgument) << text;
}

/// Settings of every point of a sweep over a configuration with two phases.
std::set<KeyValues> settings_of_points(const std::string& text) {
  const std::filesystem::path folder = ::testing::TempDir();
  std::ofstream(folder / "phased.toml")
      << "[optimizer]\ntype = \"sgd\"\n[[phase]]\nepochs = 1\n[[phase]]\nepochs = 2\n";
  std::set<KeyValues> out;
  for (const Trial& point :
       points_of(parse_sweep("[sweep]\nconfig = \"phased.toml\"\n" + text, "s.toml", folder)))
    out.insert(point.settings);
  return out;
}

TEST(SweepPoints, TryKeysOfPhases) {
  const std::set<KeyValues> wanted = {{{"phase.2.train.global_batch", "64"}},
                                      {{"phase.2.train.global_batch", "128"}}};
  EXPECT_EQ(settings_of_points("[grid]\n\"phase.2.train.global_batch\" = [64, 128]\n"), wanted);
  EXPECT_EQ(settings_of_points("[grid]\nphase.2.train.global_batch = [64, 128]\n"), wanted);
  EXPECT_EQ(without_phase("phase.12.lr.lr"), "lr.lr");
  for (const char* path : {"lr.lr", "phase.x.lr.lr", "phase.2", "phase..lr.lr"})
    EXPECT_EQ(without_phase(path), path);
  EXPECT_THROW((void)settings_of_points("[grid]\n\"phase.2.lr.rate\" = [1]\n"), InvalidArgument);
  EXPECT_THROW((void)settings_of_points("[grid]\n\"phase.3.lr.lr\" = [1.0]\n"), InvalidArgument);
}

TEST(SweepPoints, LeaveOutKeysWhoseConditionDoesNotHold) {
  const std::string grid =
      "[grid]\n\"lr.schedule\" = [\"cosine\", \"polynomial\"]\n\"lr.warmup_epochs\" = [1, 2]\n"
      "[when]\n\"lr.warmup_epochs\" = {\"lr.schedule\" = \"cosine\"}\n";
  EXPECT_EQ(settings_of_points(grid),
            (std::set<KeyValues>{{{"lr.schedule", "cosine"}, {"lr.warmup_epochs", "1"}},
                                 {{"lr.schedule", "cosine"}, {"lr.warmup_epochs", "2"}},
                                 {{"lr.schedule", "polynomial"}}}));
  // A selector that is not tried has the value of the file.
  const auto seeds = [](const std::string& type) {
    return settings_of_points(
        "[grid]\n\"run.seed\" = [1, 2]\n[when]\n\"run.seed\" = "
        "{\"optimizer.type\" = [\"" +
        type + "\"]}\n");
  };
  EXPECT_EQ(seeds("sgd").size(), 2u);
  EXPECT_EQ(seeds("kfac"), std::set<KeyValues>{KeyValues{}});
  EXPECT_THROW((void)settings_of_points("[grid]\n\"lr.lr\" = [1.0]\n[when]\n\"run.seed\" = "
                                        "{\"optimizer.type\" = \"sgd\"}\n"),
               InvalidArgument);
  EXPECT_THROW((void)settings_of_points("[grid]\n\"lr.lr\" = [1.0]\n[when]\n\"lr.lr\" = "
                                        "{\"optimizer.kind\" = \"sgd\"}\n"),
               InvalidArgument);
}

TEST(SweepPoints, ConditionsCompareValuesAndNotTheirTexts) {
  // Points with a seed: those where the condition holds.
  const auto holds = [](const std::string& tried, const std::string& condition) {
    const auto points = settings_of_points("[grid]\n\"run.seed\" = [7]\n" + tried +
                                           "\n[when]\n\"run.seed\" = {" + condition + "}\n");
    return std::ranges::count_if(points, [](const KeyValues& p) { return p.contains("run.seed"); });
  };
  for (const char* five : {"5", "5.0", "0.5e1", "[1.0, 5]"}) {
    EXPECT_EQ(holds("\"lr.warmup_epochs\" = [5.0]", std::string("\"lr.warmup_epochs\" = ") + five),
              1)
        << five;
    EXPECT_EQ(holds("\"lr.warmup_epochs\" = [5]", std::string("\"lr.warmup_epochs\" = ") + five), 1)
        << five;
  }
  EXPECT_EQ(holds("\"lr.warmup_epochs\" = [5]", "\"lr.warmup_epochs\" = 5.5"), 0);
  EXPECT_EQ(holds("", "\"lr.warmup_epochs\" = 0"), 1);  // The value of the file, 0.0.
  EXPECT_EQ(holds("", "\"lr.warmup_epochs\" = 1"), 0);
  EXPECT_EQ(holds("", "\"augment.flip\" = false"), 1);
}

TEST(SweepSpec, RefusesValuesThatAKeyCannotTake) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      (void)parse_sweep("[sweep]\nconfig = \"a.toml\"\n" + text, "s.toml", {});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  const std::string when = "[grid]\n\"run.seed\" = [1]\n[when]\n\"run.seed\" = ";
  EXPECT_EQ(refusal(when + "{\"optimizer.type\" = \"sgd\"}"), "");
  for (const char* condition :
       {"{\"optimizer.type\" = \"sgdd\"}", "{\"optimizer.type\" = [\"sgd\", \"sgdd\"]}",
        "{\"optimizer.type\" = [\"sgd\", \"sgd\"]}", "{\"lr.lr\" = -1}", "{\"lr.lr\" = [5, 5.0]}",
        "{\"run.epochs\" = 2.5}", "{\"augment.flip\" = \"on\"}"})
    EXPECT_NE(refusal(when + condition).find("s.toml:6"), std::string::npos) << condition;
  // Also where the key would have no effect and be left out of every point.
  EXPECT_NE(refusal("[grid]\n\"lr.schedule\" = [\"cosine\"]\n\"lr.power\" = [-2.0]\n")
                .find("lr.power = -2.0 is not allowed"),
            std::string::npos);
  EXPECT_NE(refusal("[grid]\n\"lr.lr\" = [5, 5.0]\n").find("twice"), std::string::npos);
}

}  // namespace
}  // namespace dkfac::app
