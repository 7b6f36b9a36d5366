#include "app/shared/config.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "app/config/keys.h"
#include "app/whole_run.h"

namespace dkfac::app {
namespace {

Config parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config(text, overrides, "file.toml");
}

std::string message(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    (void)parse(text, overrides);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

void expect_has(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(Config, NamesADevice) {
  const auto choice = [](const std::string& device) {
    const std::vector<std::string> set{"run.device=" + device};
    return device_choice(parse("", set));
  };
  EXPECT_EQ(choice("cpu").kind, Device::Kind::cpu);
  EXPECT_EQ(choice("cuda").kind, Device::Kind::cuda);
  EXPECT_FALSE(choice("cuda").index);
  EXPECT_EQ(choice("cuda:12").index, 12);
  for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda1", "CUDA"})
    EXPECT_THROW((void)choice(wrong), InvalidArgument) << wrong;
  for (const char* key : {"run.tf32", "optimizer.precondition_tf32"}) {
    const std::string set = std::string(key) + "=true";
    EXPECT_THROW((void)parse("", std::vector<std::string>{set}), InvalidArgument) << key;
    EXPECT_NO_THROW((void)parse("", std::vector<std::string>{set, "run.device=cuda"})) << key;
  }
}

TEST(Config, KeepsSamplesForTheQuadraticModelOutOfTheStatistics) {
  const auto with = [](const std::string& fraction) {
    return parse("", std::vector<std::string>{
                         "optimizer.type=kfac", "optimizer.step_length=quadratic",
                         "optimizer.damping=0.01", "optimizer.statistics_fraction=" + fraction});
  };
  EXPECT_EQ(with("0.75").optimizer.curvature().step_length, kfac::StepLength::quadratic);
  EXPECT_THROW((void)with("1"), InvalidArgument);
  EXPECT_THROW((void)parse("", std::vector<std::string>{"optimizer.step_length=quadratic",
                                                        "optimizer.damping=0.01",
                                                        "optimizer.statistics_fraction=0.5",
                                                        "optimizer.momentum=0.5"}),
               InvalidArgument);
}

TEST(Config, OfAnEmptyFileIsTheDefaults) { EXPECT_EQ(to_toml(parse("")), to_toml(Config{})); }

TEST(Config, ReadsEverySection) {
  const Config config = parse(R"(
[run]
name = "a"
precision = "f64"
[data]
name = "synthetic"
synthetic_size = 8
[model]
name = "mlp"
[train]
global_batch = 32
[optimizer]
type = "lars"
eta = 0.002
momentum = 0
[lr]
schedule = "piecewise"
knots = [[0, 0.0], [2, 0.4], [10.0, 0]]
)");
  EXPECT_EQ(config.run.precision, DType::f64);
  EXPECT_EQ(config.data.synthetic_size, 8);
  EXPECT_EQ(config.model.name, "mlp");
  EXPECT_EQ(config.train.global_batch, 32);
  EXPECT_EQ(config.optimizer.type, optim::OptimizerType::lars);
  EXPECT_DOUBLE_EQ(config.optimizer.options.lars.eta, 0.002);
  EXPECT_DOUBLE_EQ(config.optimizer.momentum(), 0.0);
  ASSERT_EQ(config.lr.knots.size(), 3u);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1.0), 0.2);
}

TEST(Config, WritesTextThatReadsBackTheSame) {
  for (const char* type : {"sgd", "lars", "adamw", "muon", "kfac"}) {
    const Config config =
        parse("[run]\nname = \"tab\\tquote\\\" back\\\\slash\"\n",
              {std::string("optimizer.type=") + type, "lr.lr=0.1", "optimizer.momentum=0.123456789",
               "lr.power=2", "data.name=synthetic"});
    for (const Comments comments : {Comments::none, Comments::help}) {
      const std::string text = to_toml(config, comments);
      EXPECT_EQ(to_toml(parse(text), comments), text);
    }
  }
}

TEST(Config, HasOneDefaultForAllOptimizersThatShareAKey) {
  const OptimizerConfig defaults;
  std::map<std::string, std::string> values;
  int shared = 0;
  optim::for_each_optimizer(defaults.options, [&](const auto& entry, const auto& options) {
    optim::for_each_option(
        options, FieldVisit{[&](const auto& field, const FieldInfo& info, auto... choices) {
          if (info.help.empty()) return;
          FieldText text;
          const FieldInfo named{.name = info.key.empty() ? info.name : info.key};
          text(field, named, choices...);
          const auto [at, first] = values.try_emplace(std::string(named.name), text.text());
          shared += first ? 0 : 1;
          EXPECT_EQ(at->second, text.text()) << entry.name;
        }});
  });
  EXPECT_GE(shared, 15);
}

TEST(Config, RunsAdamWOnItsOwnKeys) {
  const Config config = parse("", {"optimizer.type=adamw", "optimizer.momentum=0.8",
                                   "optimizer.beta2=0.99", "optimizer.adam_epsilon=1e-6",
                                   "optimizer.weight_decay=0.1", "optimizer.gradient_wire=f16"});
  const optim::AdamwOptions options = optimizer_options(config).adamw;
  EXPECT_EQ(options.beta1, 0.8);
  EXPECT_EQ(options.beta2, 0.99);
  EXPECT_EQ(options.epsilon, 1e-6);
  EXPECT_EQ(options.weight_decay, 0.1);
  EXPECT_EQ(options.communication.gradient_wire, DType::f16);
  EXPECT_EQ(options.loss_reduction, LossReduction::global_mean);
  EXPECT_THROW(parse("", {"optimizer.type=adamw", "optimizer.nesterov=true"}), InvalidArgument);
  EXPECT_THROW(parse("", {"optimizer.type=sgd", "optimizer.beta2=0.9"}), InvalidArgument);
}

TEST(Config, RunsAdamwBehindKfacOnItsOwnKeys) {
  const Config config =
      parse("", {"optimizer.update=adamw", "optimizer.momentum=0.8", "optimizer.adamw_beta2=0.99",
                 "optimizer.adamw_epsilon=1e-6", "optimizer.weight_decay=0.1", "lr.lr=0.01"});
  const optim::KfacOptions options = optimizer_options(config).kfac;
  EXPECT_EQ(options.update, optim::DirectionUpdate::adamw);
  EXPECT_EQ(options.beta1, 0.8);
  EXPECT_EQ(options.beta2, 0.99);
  EXPECT_EQ(options.epsilon, 1e-6);
  EXPECT_EQ(options.weight_decay, 0.1);
  options.validate();
  const std::string text = to_toml(config, Comments::none);
  EXPECT_EQ(to_toml(parse(text), Comments::none), text);
  EXPECT_EQ(text.find("rescale"), std::string::npos);
  for (const char* key : {"optimizer.momentum_rule=paper", "optimizer.momentum_rule=corrected",
                          "optimizer.rescale=always", "optimizer.kl_clip=0.001"})
    EXPECT_THROW(parse("", {"optimizer.update=adamw", key}), InvalidArgument) << key;
  for (const char* key : {"optimizer.adamw_beta2=0.999", "optimizer.adamw_epsilon=1e-6"})
    EXPECT_THROW(parse("", {key}), InvalidArgument) << key;
  EXPECT_THROW(parse("", {"optimizer.type=adamw", "optimizer.update=adamw"}), InvalidArgument);
}

TEST(Config, LeavesOutKeysOfOtherTypes) {
  const std::string text = to_toml(parse("", {"optimizer.type=sgd"}), Comments::none);
  EXPECT_EQ(text.find("damping"), std::string::npos);
  EXPECT_NE(text.find("nesterov"), std::string::npos);
}

TEST(Config, RefusesAnUnknownKeyWithTheNearestOneAndTheLine) {
  expect_has(message("[optimizer]\n\ndampin = 0.1\n"),
             {"file.toml:3", "unknown key 'optimizer.dampin'", "did you mean 'optimizer.damping'"});
  expect_has(message("[lr]\nmomentum = 0.5\n"), {"'lr.momentum'", "'optimizer.momentum'"});
  expect_has(message("[optimiser]\nmomentum = 0.5\n"), {"did you mean 'optimizer.momentum'"});
  expect_has(message("epochs = 3\n"), {"file.toml:1", "'epochs' is outside of a section"});
  expect_has(message("[nonsense]\n"), {"unknown section [nonsense]"});
  const std::string far = message("[run]\nxylophone_quartet = 1\n");
  expect_has(far, {"unknown key 'run.xylophone_quartet'", "dkfac info config"});
  EXPECT_EQ(far.find("did you mean"), std::string::npos) << far;
}

TEST(Config, RefusesWrongTypesAndRangesWithWhatIsAllowed) {
  expect_has(message("[optimizer]\ndamping = -1.0\n"),
             {"file.toml:2", "optimizer.damping = -1.0", ">= 0"});
  expect_has(message("[optimizer]\ndamping = 0.0\nrelative_damping = 0\n"),
             {"optimizer.relative_damping = 0 "});
  expect_has(message("[optimizer]\ndamping = nan\n"), {"optimizer.damping"});
  expect_has(message("[optimizer]\ndamping = inf\n"), {"optimizer.damping"});
  expect_has(message("[optimizer]\ndamping = \"big\"\n"), {"'big'", "a number"});
  expect_has(message("[optimizer]\nnew_weight = 1.5\n"), {"in (0, 1]"});
  expect_has(message("[optimizer]\nmomentum = 1\n"), {"in [0, 1)"});
  expect_has(message("[run]\nepochs = 2.5\n"), {"an integer in [1, 1073741824]"});
  expect_has(message("[run]\nepochs = 99999999999999999\n"), {"run.epochs"});
  expect_has(message("[run]\nprecision = \"f8\"\n"),
             {"one of \"f32\", \"f64\", \"bf16\", \"f16\""});
  expect_has(message("[run]\nname = 3\n"), {"run.name = 3", "a text in quotes"});
  expect_has(message("[data]\nshuffle = 1\n"), {"true or false"});
  expect_has(message("[run]\nepochs = [1]\n"), {"run.epochs = [ 1 ]"});
}

TEST(Config, RefusesKnotsThatAreNoSchedule) {
  const std::string head = "[lr]\nschedule = \"piecewise\"\nknots = ";
  for (const char* knots : {"[]", "3", "[[0, 1, 2]]", "[[1, 0.1], [1, 0.2]]", "[[2, 1], [1, 1]]",
                            "[[0, -0.1]]", "[[-1, 0.1]]", "[[0, \"a\"]]", "[[0, nan]]", "[0, 1]"})
    expect_has(message(head + knots + "\n"), {"lr.knots", "ascending"});
  expect_has(message("[lr]\nschedule = \"piecewise\"\n"), {"without lr.knots"});
}

TEST(Config, RefusesKeysOfAnotherType) {
  expect_has(message("[optimizer]\ntype = \"sgd\"\ndamping = 0.1\n"),
             {"file.toml:3", "optimizer.damping belongs to optimizer.type = kfac", "\"sgd\""});
  expect_has(message("[optimizer]\neta = 0.1\n"), {"belongs to optimizer.type = lars"});
  expect_has(message("[optimizer]\ndamping = 0.01\nrelative_damping = 0.2\n"),
             {"file.toml:3", "optimizer.relative_damping belongs to optimizer.damping = 0",
              "optimizer.damping is 0.01"});
  expect_has(
      message("[optimizer]\ntype = \"muon\"\nrescale = \"always\"\n"),
      {"optimizer.rescale belongs to optimizer.type = kfac, but optimizer.type is \"muon\""});
  expect_has(message("[lr]\nknots = [[0, 1]]\n"), {"belongs to lr.schedule = piecewise"});
  expect_has(message("[data]\nsynthetic_size = 4\n"), {"belongs to data.name = synthetic"});
  // Not before the type is known, wherever it stands in the file.
  EXPECT_EQ(message("[optimizer]\neta = 0.1\ntype = \"lars\"\n"), "accepted");
}

TEST(Config, RefusesValuesThatDoNotFitEachOther) {
  expect_has(message("[run]\nepochs = 5\n[lr]\nstart = 7\n"), {"lr.start = 7", "epoch 5"});
  expect_has(message("[lr]\nend = 2\nstart = 2\n"), {"lr.start = 2"});
}

TEST(Config, ReportsTomlMistakesWithTheirLine) {
  expect_has(message("[run]\nepochs = \n"), {"file.toml:2", "correct the TOML"});
  expect_has(message("[run]\nepochs = 1\nepochs = 2\n"), {"file.toml:3"});
  expect_has(message("[run\n"), {"file.toml:1"});
}

TEST(ConfigOverrides, WinOverTheFileInOrder) {
  const Config config = parse("[run]\nepochs = 3\n", {"run.epochs=4", "run.epochs=5"});
  EXPECT_EQ(config.run.epochs, 5);
}

TEST(ConfigOverrides, TakeTextWithAndWithoutQuotes) {
  EXPECT_EQ(parse("", {"model.name=mlp"}).model.name, "mlp");
  EXPECT_EQ(parse("", {"model.name=\"mlp\""}).model.name, "mlp");
  EXPECT_EQ(parse("", {"run.name=12"}).run.name, "12");
  EXPECT_EQ(parse("", {"data.path=/a b/c#d"}).data.path, "/a b/c#d");
  EXPECT_EQ(parse("", {"data.path="}).data.path, "");
  EXPECT_DOUBLE_EQ(parse("", {"optimizer.damping=1e-05"}).optimizer.options.kfac.curvature.damping,
                   1e-5);
  EXPECT_FALSE(parse("", {"data.shuffle=false"}).data.shuffle);
  EXPECT_EQ(parse("", {"lr.schedule=piecewise", "lr.knots=[[0,1]]"}).lr.knots.size(), 1u);
}

TEST(ConfigOverrides, AreCheckedLikeTheFile) {
  expect_has(message("", {"run.epochs"}), {"--set run.epochs", "key=value"});
  expect_has(message("", {"=3"}), {"key=value"});
  expect_has(message("", {"run.epoch=3"}), {"--set run.epoch=3", "did you mean 'run.epochs'"});
  expect_has(message("", {"run.epochs=0"}), {"--set run.epochs=0", "in [1, "});
  expect_has(message("", {"run.epochs=3\nseed=4"}), {"run.epochs"});
  for (const char* octal : {"run.seed=010", "run.seed=\"010\"", "run.seed=00", "run.epochs=010"})
    expect_has(message("", {octal}), {octal, "an integer"});
  EXPECT_EQ(parse("", {"run.seed=0"}).run.seed, 0u);
}

TEST(Config, FilesThatAreNotThereAreMissingInput) {
  EXPECT_THROW((void)load_config("/no/such/file.toml"), MissingInput);
  EXPECT_THROW((void)load_config("/"), IoError);
}

TEST(ConfigListing, HasEveryKey) {
  const std::string listing = config_listing();
  for (const Key& key : config_keys()) expect_has(listing, {key.path + " = ", key.help});
}

TEST(EditDistance, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "ab"), 2u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("damping", "dampin"), 1u);
}

TEST(LearningRate, FollowsScheduleAndWarmUp) {
  Config config = parse("", {"run.epochs=10", "lr.lr=0.4", "lr.power=2", "lr.warmup_epochs=2",
                             "lr.warmup_first=0.5"});
  EXPECT_NEAR(learning_rate(config, 0), 0.4 * 0.5, 1e-15);
  EXPECT_NEAR(learning_rate(config, 5), 0.4 * 0.25, 1e-15);
  EXPECT_EQ(learning_rate(config, 10), 0);
  config.lr.last = 0.2;
  EXPECT_NEAR(learning_rate(config, 5), 0.2 + 0.2 * 0.25, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(config, 10), 0.2);
  EXPECT_EQ(parse("", {"lr.final=0.125"}).lr.last, 0.125);
  EXPECT_THROW((void)parse("", {"lr.final=0.125", "lr.schedule=constant"}), InvalidArgument);
  config.lr.schedule = LrSchedule::constant;
  EXPECT_DOUBLE_EQ(learning_rate(config, 9), 0.4);
}

data::Dataset images(std::int64_t count) {
  data::Dataset data;
  data.count = count;
  data.height = data.width = 28;
  data.channels = 1;
  data.classes = 10;
  return data;
}

TEST(SamplerOptions, RefuseBatchesThatLeaveARankEmpty) {
  const auto options = [](std::vector<std::string> overrides, std::int64_t count, int ranks) {
    return sampler_options(parse("", overrides), images(count), ranks);
  };
  EXPECT_NO_THROW((void)options({"train.global_batch=4"}, 10, 4));
  EXPECT_THROW((void)options({"train.global_batch=4"}, 10, 5), InvalidArgument);
  EXPECT_THROW((void)options({"train.global_batch=11"}, 10, 2), InvalidArgument);
  EXPECT_NO_THROW((void)options({"train.global_batch=11", "train.drop_last=false"}, 10, 2));
  EXPECT_NO_THROW((void)options({"train.global_batch=4", "train.drop_last=false"}, 10, 2));
  EXPECT_THROW((void)options({"train.global_batch=4", "train.drop_last=false"}, 9, 2),
               InvalidArgument);
}

TEST(ModelOptions, DealOutBatchNormGroupsToRanks) {
  const auto groups = [](const char* text, int ranks) {
    return model_options(parse("", {std::string("model.batch_norm_groups=") + text}), images(1),
                         ranks)
        .batch_norm_groups;
  };
  EXPECT_EQ(groups("0", 3), 1);
  EXPECT_EQ(groups("4", 1), 4);
  EXPECT_EQ(groups("4", 2), 2);
  EXPECT_THROW((void)groups("4", 3), InvalidArgument);
  EXPECT_THROW((void)sampler_options(
                   parse("", {"model.batch_norm_groups=4", "train.global_batch=6"}), images(60), 1),
               InvalidArgument);
}

}  // namespace
}  // namespace dkfac::app
