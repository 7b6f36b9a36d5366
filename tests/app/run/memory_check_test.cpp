#include "app/run/memory_check.h"

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::app {
namespace {

template <class Body>
std::string refusal_of(Body&& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

TEST(MemoryCheck, RefusesWhatIsNotThereWithSizesAndRemedy) {
  EXPECT_EQ(refusal_of([] { check_memory(1000, "[test] things", "take fewer"); }), "");
  const std::string text =
      refusal_of([] { check_memory(3 * 0x1p60, "[test] things", "take fewer"); });
  EXPECT_EQ(text.find("[test] things need 3 EiB of memory"), 0U) << text;
  EXPECT_NE(text.find("; take fewer"), std::string::npos) << text;
}

TEST(MemoryCheck, RefusesDataAndBatchesThatNoMachineHolds) {
  Config config;
  config.data.name = "synthetic";
  EXPECT_EQ(refusal_of([&] { check_data_memory(config); }), "");
  config.data.synthetic_train = 1'000'000'000'000;
  EXPECT_NE(refusal_of([&] { check_data_memory(config); }).find("1000000000000"),
            std::string::npos);
  config.data.name = "fashion-mnist-small";  // Of which the files say how many there are.
  EXPECT_EQ(refusal_of([&] { check_data_memory(config); }), "");

  const nn::ModelOptions model{.name = "resnet20", .input = {32, 32, 3}};
  EXPECT_EQ(refusal_of([&] { check_model_memory(config, model, 1, 1, 1); }), "");
  for (const std::int64_t samples : {std::int64_t{1} << 40, std::int64_t{1} << 62}) {
    const std::string text = refusal_of([&] { check_model_memory(config, model, samples, 1, 1); });
    EXPECT_NE(text.find("train.global_batch"), std::string::npos) << text;
  }
  EXPECT_EQ(refusal_of([&] { check_evaluation_memory(config, model, 1, 1, 1); }), "");
  config.run.eval_batch = 1 << 24;
  const std::string text =
      refusal_of([&] { check_evaluation_memory(config, model, std::int64_t{1} << 40, 1, 1); });
  const std::string alone =
      refusal_of([&] { check_evaluation_memory(config, model, std::int64_t{1} << 40, 1); });
  for (const std::string& refusal : {text, alone})
    for (const char* word : {"run.eval_batch = 16777216", "; lower run.eval_batch"})
      EXPECT_NE(refusal.find(word), std::string::npos) << refusal;
  EXPECT_EQ(alone.find("optimizer"), std::string::npos) << "nothing is trained: " << alone;
  EXPECT_EQ(refusal_of([&] { check_evaluation_memory(config, model, 1, 1); }), "");
}

Config config_of(optim::OptimizerType type) {
  Config config;
  config.optimizer.type = type;
  return config;
}

// Parameters of 300 x 512, 512 x 512 and 512 x 10, each with a bias.
constexpr double kParameters = 301 * 512 + 513 * 512 + 513 * 10;
const nn::ModelOptions kMlp{.name = "mlp", .input = {10, 10, 3}};

TEST(MemoryCheck, CountsWhatOptimizersKeep) {
  for (const optim::OptimizerType type : {optim::OptimizerType::sgd, optim::OptimizerType::lars}) {
    EXPECT_EQ(optimizer_bytes(config_of(type), kMlp, 1, 1), 2 * 4 * kParameters);
    EXPECT_EQ(optimizer_bytes(config_of(type), kMlp, 4, 3), 3 * 2 * 4 * kParameters);
  }
  // Gradients and statistics on their way; averages, inverses and momentum of owners.
  Config config = config_of(optim::OptimizerType::kfac);
  const auto packed = [](double d) { return d * (d + 1) / 2; };
  const double statistics = packed(301) + 2 * packed(513) + 2 * packed(512) + packed(10);
  const double inverses = 301 * 301 + 2 * 513 * 513 + 2 * 512 * 512 + 10 * 10;
  const double kept = statistics + inverses + kParameters;
  config.optimizer.options.kfac.curvature.statistics.low_rank = false;
  config.optimizer.options.kfac.curvature.inverse.block_width = -1;
  EXPECT_EQ(optimizer_bytes(config, kMlp, 1, 1), 4 * (kParameters + statistics + kept));
  EXPECT_EQ(optimizer_bytes(config, kMlp, 4, 2), 2 * 4 * (kParameters + statistics + kept / 4));
  config.optimizer.options.kfac.curvature.distribution.grad_worker_fraction = 1;
  config.optimizer.options.kfac.curvature.communication.weight_wire = DType::bf16;
  EXPECT_EQ(optimizer_bytes(config, kMlp, 4, 4),
            4 * 4 * (kParameters + statistics + inverses + 2 * kParameters) + 4 * statistics);
  config.run.precision = DType::f64;
  EXPECT_EQ(optimizer_bytes(config, kMlp, 1, 1),
            8 * (kParameters + 2 * statistics + inverses + 2 * kParameters));
}

TEST(MemoryCheck, RefusesFactorsThatNoMachineHolds) {
  // Two million inputs: a network of gigabytes, and 8 TB for one triangle of A.
  const nn::ModelOptions wide{.name = "mlp", .input = {1024, 1024, 2}};
  Config config = config_of(optim::OptimizerType::kfac);
  kfac::CurvatureOptions& curvature = config.optimizer.options.kfac.curvature;
  curvature.statistics.low_rank = false;
  EXPECT_LT(optimizer_bytes(config, wide, 1, 1), 1e12);  // Control: in diagonal blocks.
  curvature.inverse.block_width = -1;
  EXPECT_GT(optimizer_bytes(config, wide, 1, 1), 8e12);
  const std::string text = refusal_of([&] { check_model_memory(config, wide, 1, 1, 1); });
  for (const char* word : {"1024 x 1024 x 2", "optimizer.type", "kfac", "data.image_size"})
    EXPECT_NE(text.find(word), std::string::npos) << text;
  // Wider than any layer of an optimizer, and than 64 bits could count.
  const nn::ModelOptions wider{.name = "mlp", .input = {65536, 65536, 3}};
  EXPECT_NE(refusal_of([&] { (void)optimizer_bytes(config, wider, 1, 1); }).find("fc1"),
            std::string::npos);
}

}  // namespace
}  // namespace dkfac::app
