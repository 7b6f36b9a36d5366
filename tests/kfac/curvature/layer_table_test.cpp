#include "kfac/curvature/layer_table.h"

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "kfac/planned_table.h"
#include "support/tensors.h"

namespace dkfac::testing {
namespace {

using kfac::kNoStatistic;
using kfac::LayerTable;

PlannedTable::Layers each_kind() {
  return {{"fc", kOneWeight}, {"norm", NormSpec{.channels = 2}}, {"scale", PlainSpec{.weight = 3}}};
}

TEST(LayerTable, HasTheStatisticsOfItsLayersInTheirOrder) {
  const PlannedTable planned(each_kind());
  const LayerTable& table = planned.table;
  ASSERT_EQ(table.ids(), 3);
  EXPECT_EQ(table.statistic(0).name, "fc.a");
  EXPECT_EQ(table.statistic(1).name, "fc.g");
  EXPECT_EQ(table.statistic(2).name, "norm.fisher");
  EXPECT_EQ(table.statistic(0).partner, 1);
  EXPECT_EQ(table.statistic(1).partner, 0);
  EXPECT_EQ(table.statistic(2).partner, kNoStatistic);
  EXPECT_EQ(table.layer(1).a, kNoStatistic);
  EXPECT_EQ(table.layer(1).g, 2);
  EXPECT_EQ(table.layer(2).g, kNoStatistic);
}

TEST(LayerTable, KnowsWhatIsDue) {
  kfac::CurvatureOptions options = options_f64();
  options.refresh.statistics_interval = 2;
  options.refresh.inverse_interval = 2;
  PlannedTable planned(each_kind(), options);
  LayerTable& table = planned.table;
  EXPECT_TRUE(table.due(0) && table.due(1) && table.due(2) && table.rebuild_due(0));
  EXPECT_FALSE(table.due(kNoStatistic) || table.rebuild_due(kNoStatistic));
  EXPECT_FALSE(table.scales_due(0)) << "the layer has no scales";
  planned.end_step();
  EXPECT_FALSE(table.due(0) || table.due(2) || table.rebuild_due(0));
  table.statistic(0).foreign = true;
  EXPECT_TRUE(table.rebuild_due(0)) << "an inverse that this device cannot apply";
}

TEST(LayerTable, KnowsWhichLayersAreOfThisRank) {
  for (const double fraction : {0.5, 1.0})
    comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
      kfac::CurvatureOptions options = options_f64();
      options.distribution.grad_worker_fraction = fraction;
      const PlannedTable planned({{"first", kOneWeight}, {"second", kOneWeight}}, options, comm);
      const LayerTable& table = planned.table;
      for (int i = 0; i < 2; ++i) {
        const bool own = i == comm->rank();
        EXPECT_EQ(table.owns(i), own);
        EXPECT_EQ(table.averaged_here(table.layer(i).a), own);
        EXPECT_EQ(table.is_worker_of(i), own || fraction == 1.0);
      }
    });
}

TEST(LayerTable, NamesTheCallWithAnUnknownLayer) {
  const PlannedTable planned(each_kind());
  EXPECT_EQ(planned.table.checked(LayerId{2}, "wants_input"), 2);
  for (const int id : {-1, 3})
    EXPECT_TRUE(contains(
        message_of([&] { (void)planned.table.checked(static_cast<LayerId>(id), "wants_input"); }),
        "[wants_input] layer id " + std::to_string(id) +
            " does not exist; add_layer() returned 0 to 2"));
}

}  // namespace
}  // namespace dkfac::testing
