// What people and programs write by mistake, or to break things: each is refused in one line that
// names the key, or taken exactly.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "app/shared/config.h"
#include "app/shared/phases.h"

namespace dkfac::app {
namespace {

using Strings = std::vector<std::string>;

std::string refusal(const std::string& text, const Strings& set = {}) {
  try {
    (void)parse_config(text, set, "here.toml");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

::testing::AssertionResult says(const std::string& text, const Strings& parts) {
  for (const std::string& part : parts)
    if (text.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << "no '" << part << "' in: " << text;
  if (text.find('\n') != std::string::npos)
    return ::testing::AssertionFailure() << "more than one line: " << text;
  return ::testing::AssertionSuccess();
}

std::string repeated(const std::string& part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += part;
  return out;
}

// One unknown key under each section and each rule by which phases change keys, wherever it stands.
TEST(ConfigInput, RefusesUnknownKeysInEverySectionAndPhase) {
  for (const std::string section :
       {"run", "data", "augment", "model", "train", "optimizer", "lr", "checkpoint"}) {
    const std::string key = section + ".no_such_key";
    EXPECT_TRUE(says(refusal(key + " = 1\n"), {"here.toml:1", "unknown key", key}));
    EXPECT_TRUE(says(refusal("", {key + "=1"}), {"--set", "unknown key", key}));
  }
  const std::string phase = "[[phase]]\nepochs = 1\n";
  for (const std::string key : {"lr.lrr", "lr.", "augment.flipp", "augment.erase_", "data.crops",
                                "data.crop_", "optimizer.first_interval"}) {
    EXPECT_TRUE(says(refusal(phase, {"phase.1." + key + "=1"}), {"unknown key", key}));
    if (key.back() == '.') continue;
    EXPECT_TRUE(says(refusal(phase + key + " = 1\n"), {"here.toml:3", "unknown key"})) << key;
  }
  EXPECT_TRUE(says(refusal(phase + "lr.lrr = 1\n"), {"did you mean 'lr.lr'"}));
}

TEST(ConfigInput, RefusesSectionsThatHoldNothingAndAreNone) {
  EXPECT_TRUE(says(refusal("[[phase]]\nepochs = 1\nnonsense = {}\n"), {"[nonsense]"}));
}

TEST(ConfigInput, RefusesAKeyThatIsGivenTwice) {
  EXPECT_TRUE(says(refusal("[[phase]]\nepochs = 1\n\"lr.lr\" = 1\nlr.lr = 2\n"),
                   {"lr.lr", "here.toml:3", "here.toml:4"}));
}

// The parser's trees are destroyed by recursion, so depth is refused before they are made.
TEST(ConfigInput, RefusesDepthAndLength) {
  constexpr int kMany = 200000;
  const Strings texts{"a" + repeated(".a", kMany) + " = 1\n",
                      "[a" + repeated(".a", kMany) + "]\n",
                      "[[a" + repeated(".a", kMany) + "]]\n",
                      "a = {b" + repeated(".b", kMany) + " = 1}\n",
                      "a" + repeated(".'='", kMany / 2) + " = 1\n",
                      "a = {b = \"\"\"x\"\"\"\", c" + repeated(".c", kMany) + " = 1}\n",
                      "a = [" + repeated("[", kMany),
                      "a = " + repeated("{a = ", kMany)};
  for (const std::string& text : texts)
    EXPECT_TRUE(says(refusal("\n" + text), {"here.toml:2", "deeper than 16"}))
        << text.substr(0, 40);
  const Strings raw{"lr.schedule=piecewise", "lr.knots={a" + repeated(".a", kMany) + "=1}"};
  EXPECT_TRUE(says(refusal("", raw), {"lr.knots", "list"}));
  EXPECT_TRUE(says(refusal("# " + repeated("long ", 1 << 20)), {"here.toml", "1048576 bytes"}));
  // What looks like depth and is none.
  EXPECT_NO_THROW((void)parse_config("# " + repeated("a.", 99) + "\nrun.name = \"" +
                                         repeated(".", 99) + "\"\n\"run\" . 'seed' = 1 # [[[\n",
                                     {}, "here.toml"));
}

TEST(ConfigInput, ShowsLongKeysAndValuesInPart) {
  const std::string longest = repeated("x", 100000);
  EXPECT_LT(refusal("run." + longest + " = 1\n").size(), 500);
  EXPECT_LT(refusal("run.epochs = \"" + longest + "\"\n").size(), 500);
  EXPECT_LT(refusal("", {"run.epochs=" + longest}).size(), 500);
  EXPECT_LT(refusal("", {"run.device=" + longest}).size(), 500);
  EXPECT_TRUE(says(refusal("", {"run.name=" + longest}), {"run.name", "200"}));
  EXPECT_LT(refusal("", {"run." + longest + "=1"}).size(), 500);
}

TEST(ConfigInput, KeepsSeedsOfAll64BitsExactly) {
  for (const std::string key : {"run.seed", "data.synthetic_seed"})
    for (const std::string seed : {"0", "9007199254740993", "9223372036854775807",
                                   "9223372036854775808", "18446744073709551615"}) {
      const Strings set{"data.name=synthetic", key + "=" + seed};
      const Config config = parse_config("", set, "here.toml");
      const std::uint64_t got = key == "run.seed" ? config.run.seed : config.data.synthetic_seed;
      EXPECT_EQ(std::to_string(got), seed);
      // As a run writes it, and reads it when it is resumed.
      const std::string text = to_toml(config);
      EXPECT_EQ(to_toml(parse_config(text, {}, "config.toml")), text);
    }
  EXPECT_EQ(parse_config("run.seed = \"18446744073709551615\"", {}, "").run.seed,
            ~std::uint64_t{0});
  for (const std::string wrong :
       {"-1", "18446744073709551616", "1.0", "1e3", "\"\"", "\"1 \"", "x"})
    EXPECT_TRUE(says(refusal("", {"run.seed=" + wrong}), {"run.seed", "18446744073709551615"}));
  EXPECT_TRUE(says(refusal("\nrun.seed = 18446744073709551615\n"), {"here.toml:2", "quotes"}));
}

TEST(ConfigInput, RefusesCountsWhoseProductsOverflow) {
  EXPECT_TRUE(says(refusal("", {"checkpoint.keep=9007199254740993"}), {"checkpoint.keep"}));
  EXPECT_TRUE(says(refusal("", {"train.loss_scale=fixed", "train.initial_loss_scale=1e-320"}),
                   {"train.initial_loss_scale"}));
  for (const std::string key :
       {"run.epochs", "train.global_batch", "model.batch_norm_groups", "model.ghost_batch"})
    EXPECT_TRUE(says(refusal("", {key + "=9007199254740992"}), {key, "1073741824"}));
  const std::string phase = "[[phase]]\nepochs = 1073741824\n";
  EXPECT_TRUE(says(refusal(phase + phase), {"here.toml:1", "2147483648 epochs"}));
}

TEST(ConfigInput, NamesTheKeysOfValuesThatDoNotFitEachOther) {
  const std::string photos = "data.name = \"synthetic-photos\"\n";
  const std::string data = photos + "data.crop = \"centre\"\n";
  EXPECT_TRUE(says(refusal("[augment]\nerase_min_area = 0.5\n"),
                   {"augment.erase_min_area = 0.5", "augment.erase_max_area = 0.25"}));
  EXPECT_TRUE(says(refusal("[augment]\nerase_max_aspect = 0.1\n"),
                   {"augment.erase_min_aspect = ", "augment.erase_max_aspect = 0.1"}));
  EXPECT_TRUE(says(refusal(photos + "data.crop_max_area = 0.05\n"),
                   {"data.crop_min_area = 0.08", "data.crop_max_area = 0.05"}));
  EXPECT_TRUE(says(refusal(data + "data.crop_resized = 100\n"),
                   {"data.image_size = 224", "data.crop_resized = 100"}));
  EXPECT_TRUE(says(refusal("", {"optimizer.operand=f64"}), {"optimizer.operand", "run.precision"}));
  EXPECT_TRUE(says(refusal("", {"optimizer.inverse_method=ekfac", "optimizer.inverse_interval=1"}),
                   {"optimizer.inverse_method", "optimizer.inverse_interval = 1"}));
  EXPECT_TRUE(says(refusal("", {"optimizer.interval_schedule=ramp"}),
                   {"optimizer.interval_schedule", "optimizer.statistics_interval = 0",
                    "optimizer.inverse_interval = 0"}));
  EXPECT_TRUE(says(refusal("", {"optimizer.inverse_method=ekfac", "optimizer.staleness=adaptive"}),
                   {"optimizer.inverse_method", "optimizer.staleness"}));
  EXPECT_TRUE(
      says(refusal("", {"optimizer.inverse_method=eigen", "optimizer.damping_split=constant"}),
           {"optimizer.damping_split", "optimizer.inverse_method"}));
  EXPECT_TRUE(says(refusal("", {"optimizer.momentum_rule=paper", "lr.lr=0"}),
                   {"optimizer.momentum_rule", "[lr]"}));
  EXPECT_TRUE(
      says(refusal("", {"model.name=mlp", "model.width=8"}), {"model.width = 8", "\"mlp\""}));
  EXPECT_TRUE(says(refusal("", {"run.name=a/../b"}), {"run.name = \"a/../b\"", "'/'"}));
}

TEST(ConfigInput, RefusesTextThatNoFileCouldHold) {
  EXPECT_TRUE(says(refusal("", {"run.name=\xff"}), {"run.name", "UTF-8"}));
  EXPECT_TRUE(says(refusal("data.path = \"/a\\u0000b\""), {"data.path", "zeros"}));
  const std::string file = ::testing::TempDir() + "dkfac_\xff.toml";  // Gives a run its name.
  std::ofstream(file) << "run.epochs = 1\n";
  EXPECT_THROW((void)load_config(file), InvalidArgument);
  std::filesystem::remove(file);
}

TEST(ConfigInput, DropsKnotsThatTheChosenScheduleDoesNotHave) {
  const std::string text =
      "[lr]\nschedule = \"piecewise\"\nknots = [[0, 1], [2, 0]]\n"
      "[[phase]]\nepochs = 1\nlr.knots = [[0, 1]]\n"
      "[[phase]]\nepochs = 1\nlr.schedule = \"step\"\nlr.knots = [[0, 0.5]]\n";
  const Config config = parse_config(text, Strings{"lr.schedule=constant"}, "here.toml");
  EXPECT_TRUE(config.lr.knots.empty());
  ASSERT_EQ(config.remarks.size(), 1);
  EXPECT_TRUE(says(config.remarks[0], {"--set lr.schedule=constant", "here.toml",
                                       "ignored: lr.knots, phase.1.lr.knots"}));
  EXPECT_FALSE(says(config.remarks[0], {"phase.2"}));  // It has a schedule of its own.
  EXPECT_EQ(phases_of(config)[1].config.lr.knots.size(), 1);
  // Both schedules have knots.
  EXPECT_TRUE(parse_config(text, Strings{"lr.schedule=step"}, "").remarks.empty());
  // Another optimizer is another run.
  EXPECT_TRUE(
      says(refusal("[optimizer]\ntype = \"kfac\"\ndamping = 0.1\n", {"optimizer.type=lars"}),
           {"optimizer.damping belongs to"}));
}

// Of data that --set chooses in place of the file's.
TEST(ConfigInput, DropsKeysThatTheChosenDataDoNotHave) {
  const std::string text =
      "[data]\nname = \"image-folder\"\nhold_out = 5\nimage_size = 64\ncrop = \"centre\"\n"
      "[[phase]]\nepochs = 1\ndata.image_size = 32\n";
  const Config config = parse_config(text, Strings{"data.name=fashion-mnist"}, "here.toml");
  EXPECT_EQ(config.data.name, "fashion-mnist");
  EXPECT_EQ(config.data.hold_out, 5);
  EXPECT_EQ(config.data.image_size, DataConfig{}.image_size);
  EXPECT_TRUE(phases_of(config)[0].changed.empty());
  ASSERT_EQ(config.remarks.size(), 1);
  EXPECT_TRUE(
      says(config.remarks[0], {"--set data.name=fashion-mnist", "data.crop, data.image_size",
                               "phase.1.data.image_size", "here.toml"}));
  EXPECT_TRUE(parse_config(text, Strings{"data.name=synthetic-photos"}, "").remarks.empty());
  // A file that contradicts itself, and an explicit --set, are refused.
  EXPECT_TRUE(says(refusal("[data]\nname = \"fashion-mnist\"\nimage_size = 64\n"),
                   {"data.image_size belongs to"}));
  EXPECT_TRUE(says(refusal(text, {"data.name=fashion-mnist", "data.image_size=9"}),
                   {"--set data.image_size=9", "belongs to"}));
  EXPECT_TRUE(
      says(refusal(text, {"data.name=nonsense"}), {"data.name = nonsense", "fashion-mnist"}));
}

}  // namespace
}  // namespace dkfac::app
