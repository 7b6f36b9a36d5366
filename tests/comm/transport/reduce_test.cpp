#include "comm/transport/reduce.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "comm/conformance.h"

namespace dkfac::comm::testing {

namespace {

template <class T>
std::vector<T> reduce(ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs)
    pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> out(inputs[0].size());
  reduce_in_order(op, dtype_of<T>, pointers, static_cast<std::int64_t>(out.size()),
                  reinterpret_cast<std::byte*>(out.data()));
  return out;
}

}  // namespace

TEST(ReduceInOrder, AddsFromTheFirstInputOn) {
  // 1 is lost beside 1e8 in f32, unless the large ones cancel first.
  EXPECT_EQ(reduce<float>(ReduceOp::sum, {{1e8F}, {1}, {-1e8F}}), std::vector<float>{0});
  EXPECT_EQ(reduce<float>(ReduceOp::sum, {{1e8F}, {-1e8F}, {1}}), std::vector<float>{1});
}

TEST(ReduceInOrder, SixteenBitsAreAddedInF32AndRoundedOnce) {
  // 256 + 1 is a tie in bf16 and rounds back to 256: added one by one in bf16, ones vanish.
  const std::vector<std::vector<bf16>> inputs{
      {to_bf16(256.0F)}, {to_bf16(1.0F)}, {to_bf16(1.0F)}, {to_bf16(1.0F)}, {to_bf16(1.0F)}};
  EXPECT_EQ(to_float(reduce<bf16>(ReduceOp::sum, inputs)[0]), 260.0F);
  bf16 one_by_one = inputs[0][0];
  for (std::size_t r = 1; r < inputs.size(); ++r)
    one_by_one = to_bf16(to_float(one_by_one) + to_float(inputs[r][0]));
  EXPECT_EQ(to_float(one_by_one), 256.0F) << "control: rounding each time gives another result";
  // An intermediate sum beyond the f16 range does not matter, only the result does.
  EXPECT_EQ(to_float(reduce<f16>(ReduceOp::sum,
                                 {{to_f16(60000.0F)}, {to_f16(60000.0F)}, {to_f16(-60000.0F)}})[0]),
            to_float(to_f16(60000.0F)));
}

TEST(ReduceInOrder, LongInputsGoThroughSeveralBlocks) {
  for (const std::size_t count : {1023U, 1024U, 1025U, 5000U}) {
    std::vector<std::vector<double>> inputs;
    for (int r = 0; r < 3; ++r)
      inputs.push_back(values_of<double>(r, static_cast<std::int64_t>(count)));
    EXPECT_EQ(reduce(ReduceOp::sum, inputs), sums_of<double>(3, static_cast<std::int64_t>(count)));
  }
}

TEST(ReduceInOrder, OutputMayBeAnInput) {
  std::vector<float> a = values_of<float>(0, 2000), b = values_of<float>(1, 2000);
  const std::vector<const std::byte*> inputs{reinterpret_cast<const std::byte*>(a.data()),
                                             reinterpret_cast<const std::byte*>(b.data())};
  reduce_in_order(ReduceOp::sum, DType::f32, inputs, 2000, reinterpret_cast<std::byte*>(b.data()));
  EXPECT_EQ(b, sums_of<float>(2, 2000));
  EXPECT_EQ(a, values_of<float>(0, 2000));
}

TEST(ReduceInOrder, NaNPassesThroughSumAndMaximumFromAnyPlace) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t bad = 0; bad < 3; ++bad) {
    std::vector<std::vector<double>> inputs{{1}, {5}, {2}};
    EXPECT_EQ(reduce(ReduceOp::max, inputs)[0], 5);
    inputs[bad][0] = nan;
    EXPECT_TRUE(std::isnan(reduce(ReduceOp::max, inputs)[0])) << bad;
    EXPECT_TRUE(std::isnan(reduce(ReduceOp::sum, inputs)[0])) << bad;
  }
}

TEST(ReduceInOrder, IntegersWrapAround) {
  const std::int32_t top = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(reduce<std::int32_t>(ReduceOp::sum, {{top, 3}, {1, 4}}),
            (std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min(), 7}));
}

}  // namespace dkfac::comm::testing
