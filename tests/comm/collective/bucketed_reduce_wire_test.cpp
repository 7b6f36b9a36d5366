#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"

#include "comm/collective/bucketed_reduce.h"
#include "comm/collective/step_pipeline.h"

// Sums that are communicated in fewer bits.
namespace dkfac::comm {
namespace {

constexpr std::int64_t kCount = 257;
/// Exponent below which all parts of these tests stay.
constexpr int kExponent = 6;

/// One step over two slots owned by ranks 0 and 1; value(rank, slot, element) goes in.
struct Reduced {
  std::vector<double> sums;  ///< Of slot 1, on its owner.
  bool overflowed = false;   ///< On any rank.
  int stop = 0;              ///< From the agreement: ranks with an overflow.
};

Reduced exchange_once(int ranks, DType dtype, DType wire, Recipients recipients, int exponent,
                      const std::function<double(int, int, std::int64_t)>& value,
                      bool parts_below_sum = false) {
  Reduced run;
  run_ranks(ranks, [&](auto comm) {
    Context ctx;
    const WorkerGrid grid =
        make_worker_grid(comm, recipients == Recipients::workers ? 2.0 / ranks : 0.0);
    const int other = ranks > 1 ? 1 : 0;
    Tensor wire_overflows = Tensor::zeros(ctx, {1});
    BucketedReduce reduce(ctx, grid, "test", {{0, kCount, 0}, {other, kCount, 1}},
                          {.recipients = recipients,
                           .dtype = dtype,
                           .bucket_bytes = 16,
                           .trailer = kFlagElements,
                           .wire = wire,
                           .parts_below_sum = parts_below_sum,
                           .wire_overflows = wire_overflows});
    StepPipeline pipeline(ctx, grid, true);
    const std::array<BucketedReduce*, 1> active{&reduce};
    for (int round = 0; round < 2; ++round) {
      for (int s = 0; s < 2; ++s) reduce.set_magnitude(s, exponent);
      ops::fill(ctx, wire_overflows, 0);
      reduce.begin();
      pipeline.begin(active);
      for (int s = 0; s < 2; ++s) {
        for (std::int64_t i = 0; i < kCount; ++i) {
          const double x = value(comm->rank(), s, i);
          if (dtype == DType::f64)
            reduce.slot(s).template data<double>()[i] = x;
          else
            reduce.slot(s).template data<float>()[i] = static_cast<float>(x);
        }
        reduce.mark_filled(s);
        pipeline.poll();
      }
      FlagMessage message;
      message.statistic_count = wire_overflows;
      pipeline.submit(message);
      const AgreedFlags agreed = pipeline.wait();
      if (comm->rank() != other) continue;
      run.stop = agreed.flags.nonfinite_statistic;
      run.overflowed = run.stop > 0;
      run.sums.clear();
      for (std::int64_t i = 0; i < kCount; ++i)
        run.sums.push_back(dtype == DType::f64
                               ? reduce.slot(1).template data<double>()[i]
                               : static_cast<double>(reduce.slot(1).template data<float>()[i]));
    }
  });
  return run;
}

double small_integer(int rank, int slot, std::int64_t i) {
  return static_cast<double>((7 * i + 3 * rank + slot) % 31 - 15);
}

double noise(int rank, int slot, std::int64_t i) {
  Random random(static_cast<std::uint64_t>(17 + rank),
                static_cast<std::uint64_t>(slot * kCount + i));
  return random.normal();
}

struct WireCase {
  DType wire;
  Recipients recipients;
  double unit;  ///< Half a unit in the last place, relative.
};

class Wire : public ::testing::TestWithParam<WireCase> {};

TEST_P(Wire, CarriesSmallIntegersExactly) {
  // Parts below 16 and sums below 64 have at most 7 bits.
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Reduced run =
        exchange_once(4, dtype, GetParam().wire, GetParam().recipients, kExponent, small_integer);
    EXPECT_FALSE(run.overflowed);
    for (std::int64_t i = 0; i < kCount; ++i) {
      double sum = 0;
      for (int r = 0; r < 4; ++r) sum += small_integer(r, 1, i);
      EXPECT_EQ(run.sums[static_cast<std::size_t>(i)], sum) << i;
    }
  }
}

TEST_P(Wire, StaysWithinTheBoundOfItsRoundings) {
  const auto [wire, recipients, unit] = GetParam();
  const Reduced run = exchange_once(4, DType::f64, wire, recipients, kExponent, noise);
  // One rounding per part, one per sum over a row and one over a column, and f32 sums of 4 terms.
  double worst = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    double sum = 0, magnitudes = 0;
    for (int r = 0; r < 4; ++r) {
      sum += noise(r, 1, i);
      magnitudes += std::abs(noise(r, 1, i));
    }
    const double error = std::abs(run.sums[static_cast<std::size_t>(i)] - sum);
    worst = std::max(worst, error / magnitudes);
  }
  EXPECT_LE(worst, 3 * unit * (1 + 4 * unit) + 8 * std::numeric_limits<float>::epsilon());
  EXPECT_GT(worst, unit / 100);  // Negative control: the wire did have fewer bits.
}

INSTANTIATE_TEST_SUITE_P(Types, Wire,
                         ::testing::Values(WireCase{DType::bf16, Recipients::owners, 0x1p-8},
                                           WireCase{DType::bf16, Recipients::workers, 0x1p-8},
                                           WireCase{DType::bf16, Recipients::all, 0x1p-8},
                                           WireCase{DType::f16, Recipients::owners, 0x1p-11},
                                           WireCase{DType::f16, Recipients::workers, 0x1p-11},
                                           WireCase{DType::f16, Recipients::all, 0x1p-11}));

TEST(HalfWire, ScalesTinyPartsIntoItsRange) {
  // 1e-7 is subnormal in f16: without a scale, a few bits would be left of it.
  const auto tiny = [](int rank, int slot, std::int64_t i) { return 1e-7 * noise(rank, slot, i); };
  const auto error_with = [&](int exponent) {
    const Reduced run =
        exchange_once(2, DType::f64, DType::f16, Recipients::owners, exponent, tiny);
    double worst = 0;
    for (std::int64_t i = 0; i < kCount; ++i) {
      const double sum = tiny(0, 1, i) + tiny(1, 1, i);
      worst = std::max(worst, std::abs(run.sums[static_cast<std::size_t>(i)] - sum));
    }
    return worst / 1e-7;
  };
  // Largest sums are near 6; two roundings of parts and one of the sum at 2^-11 each.
  EXPECT_LT(error_with(-20), 3 * 6 * 0x1p-11);
  EXPECT_GT(error_with(12), 0.1);  // Negative control: a scale for far larger parts.
}

TEST(HalfWire, NeedsNoRoomForTheSumWherePartsAreBelowIt) {
  // Equal parts of a sum that is 1 once and 4e-6 elsewhere.
  constexpr int kRanks = 64;
  const auto share = [](int, int, std::int64_t i) { return (i == 0 ? 1 : 4e-6) / kRanks; };
  const auto error = [&](bool parts_below_sum) {
    const Reduced run = exchange_once(kRanks, DType::f64, DType::f16, Recipients::owners, 1, share,
                                      parts_below_sum);
    EXPECT_EQ(run.stop, 0);
    return std::abs(run.sums[1] - 4e-6) / 4e-6;
  };
  EXPECT_LT(error(true), 2 * 0x1p-11);  // Roundings of a part and of the sum.
  EXPECT_GT(error(false), 8 * 0x1p-11);
}

TEST(HalfWire, TravelsInTheComputingTypeUntilMagnitudesAreKnown) {
  const Reduced run =
      exchange_once(2, DType::f64, DType::f16, Recipients::owners, kNoExponent, noise);
  for (std::int64_t i = 0; i < kCount; ++i)
    EXPECT_EQ(run.sums[static_cast<std::size_t>(i)], noise(0, 1, i) + noise(1, 1, i));
}

TEST(HalfWire, ReportsAnOverflowBeforeTheAgreement) {
  const auto spike = [](int rank, int slot, std::int64_t i) {
    return rank == 1 && slot == 1 && i == 200 ? 1e4 : noise(rank, slot, i);
  };
  // Growth within the headroom passes, beyond it is seen, by its own rank alone.
  EXPECT_EQ(exchange_once(3, DType::f32, DType::f16, Recipients::owners, 12, spike).stop, 0);
  EXPECT_EQ(exchange_once(3, DType::f32, DType::f16, Recipients::owners, 3, spike).stop, 1);
}

TEST(WideWire, ReportsPartsThatF32CannotHold) {
  for (const DType wire : {DType::f32, DType::bf16, DType::f16})
    for (const double large : {1e39, 1e300, 1e30}) {
      const auto spike = [large](int rank, int slot, std::int64_t i) {
        return rank == 1 && slot == 1 && i == 200 ? large : noise(rank, slot, i);
      };
      const Reduced run = exchange_once(3, DType::f64, wire, Recipients::owners, 100, spike);
      EXPECT_EQ(run.stop, large > 1e38 ? 1 : 0) << wire << ' ' << large;
    }
}

TEST(WideWire, NarrowsF64ToF32) {
  const Reduced run = exchange_once(3, DType::f64, DType::f32, Recipients::owners, 0, noise);
  for (std::int64_t i = 0; i < kCount; ++i) {
    float sum = 0;
    for (int r = 0; r < 3; ++r) sum += static_cast<float>(noise(r, 1, i));
    EXPECT_EQ(run.sums[static_cast<std::size_t>(i)], static_cast<double>(sum));
  }
}

}  // namespace
}  // namespace dkfac::comm
