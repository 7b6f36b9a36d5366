#include "kfac/curvature/statistic_sums.h"

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "comm/collective/step_pipeline.h"
#include "kfac/planned_table.h"
#include "support/near.h"

namespace dkfac::testing {
namespace {

using kfac::StatisticSums;

class SumsOf {
 public:
  explicit SumsOf(PlannedTable& planned)
      : ctx_(planned.ctx),
        wire_overflows_(Tensor::zeros(planned.ctx, {1})),
        sums(planned.table, comm::kFlagElements, wire_overflows_, planned.ctx) {}
  std::vector<comm::BucketedReduce*> begin() {
    std::vector<comm::BucketedReduce*> active;
    sums.begin(active);
    return active;
  }

 private:
  Context& ctx_;
  Tensor wire_overflows_;

 public:
  StatisticSums sums;
};

TEST(StatisticSums, AreOnTheOwnerWhatAllRanksHaveFilled) {
  comm::run_ranks(2, [](std::shared_ptr<comm::Communicator> comm) {
    PlannedTable planned({{"first", kOneWeight}, {"second", kOneWeight}}, options_f64(), comm);
    SumsOf of(planned);
    const std::vector<comm::BucketedReduce*> active = of.begin();
    ASSERT_EQ(active.size(), 2U);
    EXPECT_FALSE(active[0]->has_trailer());
    EXPECT_TRUE(active[1]->has_trailer()) << "the last one carries the flags";
    comm::StepPipeline pipeline(planned.ctx, planned.table.grid, false);
    pipeline.begin(active);
    for (int id = 0; id < planned.table.ids(); ++id) {
      ops::fill(planned.ctx, of.sums.of(id), 10 * id + 1 + comm->rank());
      of.sums.mark_filled(id);
    }
    pipeline.submit({});
    EXPECT_TRUE(pipeline.wait().flags.may_update());
    for (int id = 0; id < planned.table.ids(); ++id)
      EXPECT_EQ(values(planned.ctx, of.sums.of(id))[0] == 20.0 * id + 3,
                planned.table.averaged_here(id))
          << id;
  });
}

TEST(StatisticSums, BeginWithWhatIsDue) {
  kfac::CurvatureOptions options = options_f64();
  options.refresh.statistics_interval = 2;
  PlannedTable planned({{"fc", kOneWeight}}, options);
  SumsOf of(planned);
  EXPECT_EQ(of.begin().size(), 2U);
  planned.end_step();
  EXPECT_TRUE(of.begin().empty());
  planned.end_step();
  EXPECT_EQ(of.begin().size(), 2U);
}

TEST(StatisticSums, HaveScalesWithEkfacAlone) {
  kfac::CurvatureOptions options = options_f64();
  PlannedTable without({{"fc", kOneWeight}}, options);
  const std::int64_t bytes = SumsOf(without).sums.staging_bytes();
  EXPECT_EQ(without.table.layer(0).scales(), nullptr);
  options.inverse.method = kfac::InverseMethod::ekfac;
  PlannedTable with({{"fc", kOneWeight}}, options);
  SumsOf of(with);
  EXPECT_EQ(with.table.layer(0).scales()->slot, 0);
  EXPECT_GT(of.sums.staging_bytes(), bytes);
  EXPECT_EQ(of.begin().size(), 3U);
}

}  // namespace
}  // namespace dkfac::testing
