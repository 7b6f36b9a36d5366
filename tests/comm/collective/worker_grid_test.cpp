#include "comm/collective/worker_grid.h"

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

namespace dkfac::comm {
namespace {

TEST(WorkersOf, AreTheFractionOfTheRanks) {
  EXPECT_EQ(workers_of(0, 6), 1);
  EXPECT_EQ(workers_of(1.0 / 6, 6), 1);
  EXPECT_EQ(workers_of(0.3333, 6), 2);
  EXPECT_EQ(workers_of(0.5, 6), 3);
  EXPECT_EQ(workers_of(1, 6), 6);
  EXPECT_EQ(workers_of(1, 1), 1);
}

TEST(WorkersOf, NamesThePossibleFractions) {
  for (const double fraction : {0.75, 2.0, -0.5, 0.01}) try {
      (void)workers_of(fraction, 4);
      FAIL() << fraction;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("1/4, 1/2, 1"), std::string::npos) << error.what();
    }
}

TEST(WorkerGrid, PutsRanksIntoRowsAndColumns) {
  run_ranks(6, [](auto comm) {
    const WorkerGrid grid = make_worker_grid(comm, 0.5);
    const int rank = comm->rank();
    EXPECT_EQ(grid.columns(), 2);
    EXPECT_EQ(grid.row->size(), 2);
    EXPECT_EQ(grid.column->size(), 3);
    EXPECT_EQ(grid.row->rank(), rank % 2);
    EXPECT_EQ(grid.column->rank(), rank / 2);
    for (int owner = 0; owner < 6; ++owner)
      EXPECT_EQ(grid.is_worker_of(owner), owner % 2 == rank % 2);
  });
}

TEST(WorkerGrid, SplitsNothingAtEitherEnd) {
  run_ranks(3, [](auto comm) {
    const WorkerGrid owners = make_worker_grid(comm, 0), all = make_worker_grid(comm, 1);
    EXPECT_EQ(owners.row, owners.world);
    EXPECT_EQ(owners.column->size(), 1);
    EXPECT_EQ(all.column, all.world);
    EXPECT_EQ(all.row->size(), 1);
    EXPECT_EQ(comm->sequence(), 0U);
    for (int owner = 0; owner < 3; ++owner) {
      EXPECT_EQ(owners.is_worker_of(owner), owner == comm->rank());
      EXPECT_TRUE(all.is_worker_of(owner));
    }
  });
}

/// Error message on rank 1 of two with another backend, or another number of threads.
std::string refusal(double fraction, bool other_backend) {
  std::string message;
  run_ranks(2, [&](auto comm) {
    const bool second = comm->rank() == 1;
    const int before = threads();
    if (second && !other_backend) set_threads(before + 1);
    const Context ctx(Device::cpu(),
                      {.backend = second && other_backend ? Backend::reference : Backend::fast});
    try {
      require_equal_arithmetic(make_worker_grid(comm, fraction), ctx);
    } catch (const InvalidArgument& error) {
      if (second) message = error.what();
    }
    set_threads(before);
  });
  return message;
}

void expect_refused_where_updates_are_shared(bool other_backend) {
  EXPECT_EQ(refusal(0, other_backend), "");
  EXPECT_NE(refusal(1, other_backend).find("ContextOptions::threads and backend"),
            std::string::npos)
      << refusal(1, other_backend);
}

TEST(WorkerGrid, WantsEqualBackendsWhereRanksMakeTheSameUpdate) {
  expect_refused_where_updates_are_shared(true);
  EXPECT_NE(refusal(1, true).find("reference"), std::string::npos);
}

TEST(WorkerGrid, WantsEqualThreadsWhereRanksMakeTheSameUpdate) {
  const int before = threads();
  set_threads(before + 1);
  const bool has_threads = threads() > before;
  set_threads(before);
  if (!has_threads) GTEST_SKIP() << "SKIPPED: this build has one thread";
  expect_refused_where_updates_are_shared(false);
}

BackendInfo a_machine() {
  BackendInfo info;
  info.blas_config = "OpenBLAS 0.3.21";
  info.blas_core = "SkylakeX";
  info.onednn_version = "2.6";
  info.onednn_isa = "avx512";
  info.cuda_info = {"13.0", "13.0", "13.1.0", "12.0.4", {{"H100", "9.0", 1 << 30, 132}}};
  return info;
}

TEST(ArithmeticText, OfProductsOnTheHostNamesTheLibraries) {
  const Context fast(Device::cpu(), {.backend = Backend::fast});
  const Context reference(Device::cpu(), {.backend = Backend::reference});
  const BackendInfo info = a_machine();
  const auto text = [&](const Context& ctx, const BackendInfo& of) {
    return arithmetic_text(ctx, of, Repeated::products);
  };
  EXPECT_EQ(text(fast, info), text(fast, a_machine()));
  EXPECT_NE(text(fast, info), text(reference, info));
  for (const auto field : {&BackendInfo::blas_config, &BackendInfo::blas_core,
                           &BackendInfo::onednn_version, &BackendInfo::onednn_isa}) {
    BackendInfo other = info;
    other.*field = "another";
    EXPECT_NE(text(fast, other), text(fast, info));
    EXPECT_EQ(text(reference, other), text(reference, info)) << "it uses none of them";
  }
  BackendInfo other = info;
  other.cuda_info = {};
  EXPECT_EQ(text(fast, other), text(fast, info)) << "a device that is not used";
}

TEST(ArithmeticText, OfUpdatesOnTheHostIsTheSameEverywhere) {
  const Context fast(Device::cpu(), {.backend = Backend::fast});
  const Context reference(Device::cpu(), {.backend = Backend::reference});
  EXPECT_EQ(arithmetic_text(fast, a_machine(), Repeated::updates),
            arithmetic_text(reference, BackendInfo{}, Repeated::updates));
}

TEST(WorkerGrid, SeesACallThatOneRankLeavesOut) {
  run_ranks(4, [](auto comm) {
    const WorkerGrid grid = make_worker_grid(comm, 0.5);
    const std::uint64_t before = grid.contract_hash();
    double x = 1;
    grid.row->all_reduce(view_of(&x, {1}), ReduceOp::sum, Stream::cpu());
    EXPECT_NE(grid.contract_hash(), before);
    EXPECT_EQ(grid.bytes(), 8U);
  });
}

}  // namespace
}  // namespace dkfac::comm
