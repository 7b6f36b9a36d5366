#include "kfac/distribution/memory_need.h"

#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/kfac/preconditioner.h"

#include "kfac/inverse/split_inverse.h"

namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;
using kfac::PlannedLayers;
using kfac::RankMemory;

double packed(double d) { return d * (d + 1) / 2; }

/// A small layer of rank 0 and a wide one of rank 1.
struct TwoLayers {
  std::vector<std::string> names{"body", "head"};
  std::vector<LayerSpec> specs{LinearSpec{.in = 10, .out = 20}, LinearSpec{.in = 20, .out = 1000}};
  std::vector<kfac::LayerOwners> owners{0, 1};
  CurvatureOptions options;
  [[nodiscard]] PlannedLayers plan(int workers = 1) const {
    return {.names = names,
            .specs = specs,
            .owners = owners,
            .options = options,
            .workers = workers,
            .ranks = 2};
  }
  static constexpr double kInverses0 = 11 * 11 + 20 * 20, kInverses1 = 21 * 21 + 1000 * 1000;
  [[nodiscard]] static double averages(int layer) {
    return layer == 0 ? packed(11) + packed(20) : packed(21) + packed(1000);
  }
};

TEST(MemoryNeed, IsThatOfStagingAveragesInversesAndARebuild) {
  const TwoLayers layers;
  const double staging = TwoLayers::averages(0) + TwoLayers::averages(1);
  EXPECT_EQ(kfac::memory_need(layers.plan()),
            (std::vector<double>{
                4 * (staging + TwoLayers::averages(0) + TwoLayers::kInverses0 + 20 * 20),
                4 * (staging + TwoLayers::averages(1) + TwoLayers::kInverses1 + 1000 * 1000)}));
  const double all = TwoLayers::kInverses0 + TwoLayers::kInverses1;
  EXPECT_EQ(kfac::memory_need(layers.plan(2))[0],
            4 * (staging + TwoLayers::averages(0) + all + 20 * 20));
}

TEST(MemoryNeed, CountsAFactorThatAnotherRankInverts) {
  TwoLayers layers;
  layers.owners = {0, {1, 1, 0}};  // A of 'head', 21 wide, is inverted by its owner; G by rank 0.
  const double staging = TwoLayers::averages(0) + TwoLayers::averages(1);
  const double g = 1000 * 1000, of_g = packed(1000);
  EXPECT_EQ(kfac::memory_need(layers.plan()),
            (std::vector<double>{
                4 * (staging + TwoLayers::averages(0) + of_g + TwoLayers::kInverses0 + g + g),
                4 * (staging + packed(21) + TwoLayers::kInverses1 + 21 * 21)}));
  // Rank 0 is a worker of the layer, too, and has one copy.
  EXPECT_EQ(kfac::memory_need(layers.plan(2))[0],
            4 * (staging + TwoLayers::averages(0) + of_g + TwoLayers::kInverses0 +
                 TwoLayers::kInverses1 + g));
}

TEST(MemoryNeed, CountsTheScratchOfEachRankThatInvertsAFactorWithOthers) {
  TwoLayers layers;
  const std::vector<double> alone = kfac::memory_need(layers.plan());
  layers.owners[1].ranks_g = 2;
  const std::vector<double> together = kfac::memory_need(layers.plan());
  const auto scratch = static_cast<double>(kfac::split_scratch(1000, 2));
  EXPECT_EQ(together[0], alone[0] + 4 * (scratch - 20 * 20));  // Beside no matrix of its own.
  EXPECT_EQ(together[1], alone[1] + 4 * scratch);
}

TEST(MemoryNeed, IsComparedWithWhatEachGroupOfRanksHas) {
  const TwoLayers layers;
  const std::vector<double> need = kfac::memory_need(layers.plan());
  const auto shortage = [&](RankMemory a, RankMemory b) {
    return kfac::memory_shortage(layers.plan(), std::vector<RankMemory>{a, b});
  };
  const double unknown = std::numeric_limits<double>::infinity(), both = need[0] + need[1];
  EXPECT_EQ(shortage({1, need[0]}, {2, need[1]}), "");
  EXPECT_EQ(shortage({1, unknown}, {1, both}), "");
  EXPECT_EQ(shortage({1, unknown}, {2, unknown}), "");
  const std::string alone = shortage({1, need[0]}, {2, need[1] - 1});
  for (const char* word :
       {"rank 1, and", "'head'", "21 (A) and 1000 (G)", "skip_layers", "max_rows", "MiB of memory"})
    EXPECT_NE(alone.find(word), std::string::npos) << alone;
  EXPECT_EQ(alone.find("batch"), std::string::npos) << alone;
  EXPECT_EQ(alone.find("grad_worker_fraction"), std::string::npos) << alone;
  EXPECT_NE(shortage({1, both - 1}, {1, unknown}).find("rank 0 and the 1 that share"),
            std::string::npos);
}

TEST(MemoryNeed, NamesRemediesThatApply) {
  TwoLayers layers;
  layers.options.dtype = DType::f64;
  layers.options.inverse.method = kfac::InverseMethod::eigen;
  const std::vector<RankMemory> none{{1, 0}, {1, 0}};
  const std::string text = kfac::memory_shortage(layers.plan(2), none);
  for (const char* word : {"lower grad_worker_fraction", "dtype f32"})
    EXPECT_NE(text.find(word), std::string::npos) << text;
  EXPECT_EQ(text.find("max_rows"), std::string::npos) << text;
}

TEST(MemoryNeed, ThatNoMachineHasIsAnErrorOnAllRanksThatNamesTheLayer) {
  comm::run_ranks(2, [](auto comm) {
    CurvatureOptions whole;
    whole.inverse.block_width = -1;
    kfac::Preconditioner preconditioner(comm, whole);
    (void)preconditioner.add_layer("small", LinearSpec{.in = 4, .out = 4});
    (void)preconditioner.add_layer("head", LinearSpec{.in = 4, .out = std::int64_t{1} << 24});
    try {
      preconditioner.prepare();
      ADD_FAILURE() << "it fits";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      for (const char* word :
           {"'head'", "16777216 (G)", "PiB of memory", "first-order update", "block_width"})
        EXPECT_NE(text.find(word), std::string::npos) << text;
    }
  });
}

TEST(SlowRebuild, IsSaidForWideLayersAlone) {
  TwoLayers layers;
  EXPECT_EQ(kfac::slow_rebuild(layers.plan(), {}), "");
  layers.specs[1] = LinearSpec{.in = 768, .out = 50257};
  const std::string text = kfac::slow_rebuild(layers.plan(), {});
  for (const char* word : {"rank 1", "'head'", "769 (A) and 50257 (G)", "inverse_interval"})
    EXPECT_NE(text.find(word), std::string::npos) << text;
  PlannedLayers device = layers.plan();
  layers.specs[1] = LinearSpec{.in = 512, .out = 10000};
  EXPECT_NE(kfac::slow_rebuild(device, {}), "");
  device.device = Device::cuda(0);
  EXPECT_EQ(kfac::slow_rebuild(device, {}), "");
}

TEST(SlowRebuild, IsInTheNoticeAndTheTable) {
  kfac::Preconditioner preconditioner(comm::make_self());
  (void)preconditioner.add_layer("head", LinearSpec{.in = 4, .out = 4});
  EXPECT_THROW((void)preconditioner.notice(), InvalidArgument);
  preconditioner.prepare();
  EXPECT_EQ(preconditioner.notice().find("rebuilding"), std::string::npos);
  EXPECT_EQ(preconditioner.describe().find("[prepare]"), std::string::npos);
}

}  // namespace
}  // namespace dkfac::testing
