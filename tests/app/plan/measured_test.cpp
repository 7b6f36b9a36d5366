#include "app/plan/measured.h"

#include <filesystem>
#include <numeric>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/plan/forecast.h"
#include "support/temp_folder.h"
#include "support/tensors.h"

namespace dkfac::app::planning {
namespace {

namespace measured {

using nlohmann::json;

constexpr int kBatch = 64;

Network lenet(int ranks = 1) {
  return network_of({.name = "lenet-bn", .input = {28, 28, 1}}, kBatch * ranks, kBatch);
}

/// Milliseconds that are no multiples of what any rates would give.
json step(const Network& network) {
  const json sgd = {{"forward", 3.0}, {"backward", 7.0}, {"update", 0.5}, {"exchange", 0.25}},
             kfac = {{"A", 2.0},        {"G", 1.0},        {"batch norm", 0.0},
                     {"average", 0.25}, {"inverse", 11.0}, {"precondition", 1.5},
                     {"update", 0.75}};
  const double flops = network.training_flops * kBatch;
  return {
      {"benchmark", "step"},
      {"model", "lenet-bn"},
      {"batch", kBatch},
      {"input", {28, 28, 1}},
      {"ranks", 1},
      {"precision", "f32"},
      {"machine", {{"processor", "a processor"}, {"threads", 1}, {"blas_kernels", "SkylakeX"}}},
      {"roof", {{"sgemm_gflops", 50.0}, {"copy_gb_per_s", 10.0}}},
      {"results",
       {{{"optimizer", "sgd"}, {"network_flops", flops}, {"parts_ms_by_kind", {{"plain", sgd}}}},
        {{"optimizer", "kfac"},
         {"network_flops", flops},
         {"block_width", -1},
         {"inverse_method", "cholesky"},
         {"statistics_fraction", 1.0},
         {"parts_ms_by_kind", {{"statistics+inverse", kfac}}}}}}};
}

/// Sums that take 10 us each way and 1 GB/s, and of 32 MiB, which no bucket has, half of that.
json comm() {
  json all = {{"benchmark", "comm"}, {"ranks", 2}, {"collectives", json::array()}};
  for (const double bytes : {0.0, 4.0 * (1 << 20), 32.0 * (1 << 20)})
    all["collectives"].push_back(
        {{"collective", "all_reduce"},
         {"bytes", bytes},
         {"us", {{"median", 20 + bytes / (bytes > 4.0 * (1 << 20) ? 500 : 1e3)}}}});
  all["collectives"].push_back(
      {{"collective", "reduce_scatter"}, {"bytes", 32.0 * (1 << 20)}, {"us", {{"median", 1.0}}}});
  return all;
}

class Measured : public ::testing::Test {
 protected:
  std::string write(const char* name, const json& content) {
    const std::filesystem::path path = folder_.path() / name;
    write_file(path, content.dump());
    return path.string();
  }
  /// The reason for which a file is refused.
  std::string refusal(const json& content, const Network& network) {
    try {
      (void)measured_cluster({write("refused.json", content)}, network, {});
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return {};
  }

 private:
  dkfac::testing::TempFolder folder_;
};

Strategy every_step() {
  Strategy kfac{.name = "kfac"};
  kfac.curvature.refresh.statistics_interval = kfac.curvature.refresh.inverse_interval = 1;
  return kfac;
}

double phase(const Forecast& f, Phase of) { return f.phases.at(static_cast<std::size_t>(of)); }

TEST_F(Measured, HasThePhasesOfOneRankAndTheLinksOfTwo) {
  const Cluster c = measured_cluster(
      {write("step.json", step(lenet())), write("comm.json", comm())}, lenet(), {});
  const Forecast one = forecast(lenet(), c, every_step());
  EXPECT_DOUBLE_EQ(phase(one, Phase::forward), 3e-3);
  EXPECT_DOUBLE_EQ(phase(one, Phase::backward), 7e-3);
  EXPECT_DOUBLE_EQ(phase(one, Phase::statistics), 3.25e-3);
  EXPECT_DOUBLE_EQ(phase(one, Phase::inverses), 11e-3);
  EXPECT_DOUBLE_EQ(phase(one, Phase::precondition), 1.5e-3);
  EXPECT_DOUBLE_EQ(phase(one, Phase::update), 0.75e-3);
  EXPECT_DOUBLE_EQ(phase(one, Phase::reduce), 0.25e-3);  // Copies of gradients.
  EXPECT_DOUBLE_EQ(phase(one, Phase::gather), 0);
  EXPECT_DOUBLE_EQ(phase(forecast(lenet(), c, {.name = "sgd", .type = optim::OptimizerType::sgd}),
                         Phase::update),
                   0.5e-3);
  EXPECT_EQ(c.processor.name, "a processor, 1 thread, SkylakeX kernels");
  EXPECT_DOUBLE_EQ(c.inner.bytes_per_s, 1e9);
  EXPECT_DOUBLE_EQ(c.inner.latency, 10e-6);
}

TEST_F(Measured, SharesTheWorkOfOwnersAmongRanksAndNoOther) {
  Cluster c = measured_cluster({write("step.json", step(lenet())), write("comm.json", comm())},
                               lenet(), {});
  c.ranks = c.per_node = 2;
  const Forecast two = forecast(lenet(2), c, every_step());
  EXPECT_DOUBLE_EQ(phase(two, Phase::forward), 3e-3);
  EXPECT_DOUBLE_EQ(phase(two, Phase::backward), 7e-3);
  EXPECT_LT(phase(two, Phase::inverses), 11e-3);
  EXPECT_GE(phase(two, Phase::inverses), 11e-3 / 2);
  EXPECT_GT(phase(two, Phase::reduce), 0.25e-3 + two.sent.inner / 2 / 1e9);
  EXPECT_GT(phase(two, Phase::gather), 0.25e-3);  // All weights are copied once more.
}

TEST_F(Measured, RefusesWhatIsOfOtherWork) {
  const Network network = lenet();
  EXPECT_NE(refusal({{"what", "plan"}}, network).find("dkfac bench"), std::string::npos);
  EXPECT_NE(refusal({{"benchmark", "inverse"}}, network).find("another benchmark"),
            std::string::npos);
  EXPECT_NE(refusal(comm(), network).find("names no step"), std::string::npos);
  json other = step(network);
  other["ranks"] = 2;
  EXPECT_NE(refusal(other, network).find("several ranks"), std::string::npos);
  other = step(network);
  other["results"][1]["block_width"] = 64;
  EXPECT_NE(refusal(other, network).find("--set optimizer.block_width=-1"), std::string::npos);
  other = step(network);
  other["results"][1]["inverse_method"] = "eigen";
  EXPECT_NE(refusal(other, network).find("--set optimizer.inverse_method=cholesky"),
            std::string::npos);
  other = step(network);
  other["precision"] = "bf16";
  EXPECT_NE(refusal(other, network).find("--precision f32"), std::string::npos);
  other = step(network);
  other["results"].erase(1);
  EXPECT_NE(refusal(other, network).find("no step of kfac"), std::string::npos);
  other = step(network);
  other.erase("roof");
  EXPECT_NE(refusal(other, network).find("damaged"), std::string::npos);
  EXPECT_NE(
      refusal(step(network_of({.name = "lenet-bn", .input = {32, 32, 1}}, kBatch, kBatch)), network)
          .find("operations"),
      std::string::npos);
  other = comm();
  other["ranks"] = 4;
  EXPECT_NE(refusal(other, network).find("mpirun -n 2"), std::string::npos);
}

TEST_F(Measured, RefusesTwoFilesOfOneKind) {
  const std::string first = write("first.json", comm()), second = write("second.json", comm());
  const std::string text = dkfac::testing::message_of([&] {
    (void)measured_cluster({write("step.json", step(lenet())), first, second}, lenet(), {});
  });
  EXPECT_NE(text.find(second + ": it is of comm, as " + first), std::string::npos) << text;
}

}  // namespace measured
}  // namespace
}  // namespace dkfac::app::planning
