// Settings of configurations, and where they differ.

#include "app/report/settings.h"

#include <gtest/gtest.h>

#include "app/fake_runs.h"

namespace dkfac::app {
namespace {

using testing::fake_group;

TEST(Settings, AreReadLineByLine) {
  const auto settings = settings_of(
      "# a comment\n[run]\nname = \"a = b\"\n\n[ lr ]\nknots = [[0, 1], [2, 3]]\nlr=0.1\r\nnoise");
  EXPECT_EQ(settings,
            (std::map<std::string, std::string>{
                {"run.name", "\"a = b\""}, {"lr.knots", "[[0, 1], [2, 3]]"}, {"lr.lr", "0.1"}}));
  EXPECT_TRUE(settings_of("").empty());
}

TEST(Settings, DifferWhereAGroupHasAnotherValueOrNone) {
  std::vector<RunGroup> groups{fake_group("a", {{0.5}, {0.5}}), fake_group("b", {{0.5}})};
  groups[0].runs[1].configuration =
      "[run]\nname = \"a\"\nseed = 2\n[optimizer]\ntype = \"kfac\"\n[train]\nbatch = "
      "64\n[extra]\nk = 1\n";
  groups[1].runs[0].configuration =
      "[run]\nname = \"b\"\n[optimizer]\ntype = \"sgd\"\n[train]\nbatch = 64\n";
  using Values = std::vector<std::optional<std::string>>;
  const auto settings = differing_settings(groups);
  EXPECT_EQ(settings.size(), 2U) << "neither labels nor what is the same in all";
  EXPECT_EQ(settings.at("optimizer.type"), (Values{"\"kfac\"", "\"sgd\""}));
  EXPECT_EQ(settings.at("extra.k"), (Values{"1", std::nullopt}));
  EXPECT_TRUE(differing_settings({groups.data(), 1}).empty()) << "of one group";
}

}  // namespace
}  // namespace dkfac::app
