#include "app/commands/model_info.h"

#include <sstream>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/nn/kfac_attach.h"

#include "app/shared/phases.h"

namespace dkfac::app {
namespace {

Config config_with(std::vector<std::string> more) {
  std::vector<std::string> all = {"data.name=synthetic",     "data.synthetic_train=8192",
                                  "data.synthetic_size=16",  "data.synthetic_test=10",
                                  "train.global_batch=4096", "optimizer.type=kfac",
                                  "model.name=lenet-bn",     "run.epochs=1",
                                  "lr.schedule=constant",    "optimizer.damping=0.03"};
  all.insert(all.end(), more.begin(), more.end());
  return parse_config("", all, "test");
}

/// The plans refer to `data`.
std::vector<PhasePlan> phases_with(const Config& config,
                                   const std::shared_ptr<const data::DataSplits>& data, int ranks) {
  return plan_phases(config, {data}, ranks);
}

/// What the optimizer of rank 0 says after prepare(), without its table of buffers.
std::string prepared(const Config& config, const data::DataSplits& data, int ranks) {
  std::string text;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const bool first = comm->rank() == 0;
    Context ctx;
    const auto model = nn::make_model(ctx, model_options(config, data.train, ranks));
    const auto optimizer = make_optimizer(config, std::move(comm));
    nn::AttachOptions options = attach_options(config);
    options.max_samples = config.train.global_batch;
    const nn::OptimizerAttachment attachment(*model, *optimizer, options);
    optimizer->prepare();
    if (first) text = optimizer->describe();
  });
  std::istringstream in(text);
  std::string out;
  bool buffers = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("buffers of this rank")) buffers = true;
    if (!buffers) out += line + "\n";
    if (line.empty()) buffers = false;
  }
  return out;
}

TEST(OptimizerPlan, IsWhatPreparedOptimizersSay) {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"optimizer.grad_worker_fraction=1"},
      {"optimizer.staleness=adaptive", "optimizer.weight_wire=f16"},
      {"optimizer.inverse_method=eigen"}};
  for (const auto& more : cases) {
    const Config config = config_with(more);
    const auto data =
        std::make_shared<const data::DataSplits>(data::load_data(data_source(config)));
    for (const int ranks : {1, 2, 3}) {
      const std::string plan = optimizer_plan(config, phases_with(config, data, ranks), ranks);
      EXPECT_EQ(plan, prepared(config, *data, ranks)) << ranks << " ranks";
      EXPECT_FALSE(plan.empty());
    }
  }
}

TEST(OptimizerPlan, OfAFirstOrderMethodIsItsDescription) {
  const Config config = parse_config(
      "", std::vector<std::string>{"data.name=synthetic", "optimizer.type=lars"}, "test");
  const auto data = std::make_shared<const data::DataSplits>(data::load_data(data_source(config)));
  EXPECT_EQ(optimizer_plan(config, phases_with(config, data, 2), 2),
            make_optimizer(config, comm::make_self())->describe() + "\n");
}

TEST(OptimizerPlan, JoinsTheRanksWithoutALayer) {
  const Config config = config_with({});
  const auto data = std::make_shared<const data::DataSplits>(data::load_data(data_source(config)));
  const std::string plan = optimizer_plan(config, phases_with(config, data, 4096), 4096);
  EXPECT_NE(plan.find(" to 4095"), std::string::npos) << plan;
  EXPECT_LT(plan.size(), std::size_t{20000});
  const std::string few = optimizer_plan(config, phases_with(config, data, 16), 16);
  EXPECT_EQ(few.find(" to 15"), std::string::npos) << few;
}

TEST(OutlineModel, CountsLikeTheModelAndDoesNotRun) {
  const nn::ModelOptions options{.name = "resnet20", .input = {32, 32, 3}};
  Context ctx;
  const auto made = nn::make_model(ctx, options), outline = nn::outline_model(options);
  EXPECT_EQ(outline->summary(), made->summary());
  EXPECT_EQ(outline->parameter_count(), made->parameter_count());
  EXPECT_EQ(outline->buffer_count(), made->buffer_count());
  EXPECT_EQ(nn::training_flops(*outline), nn::training_flops(*made));
  EXPECT_EQ(outline->allocated_bytes(), 0u);
  const Tensor x = Tensor::zeros(ctx, {1, 32, 32, 3});
  EXPECT_THROW((void)outline->forward(ctx, x, nn::Mode::eval), InvalidArgument);
  EXPECT_EQ(nn::layer_names(options).size(), nn::layer_specs(options).size());
}

}  // namespace
}  // namespace dkfac::app
