#include <algorithm>
#include <cstring>
#include <limits>

#include "comm/conformance.h"
#include "comm/transport/cuda/segment_functors.h"
#include "comm/transport/reduce.h"
#include "core/shared/cuda/reduce_ops.h"

// Device functors, run on the host: the same bits as the host backend, and no stray access.
namespace dkfac::comm::testing {
namespace {

constexpr std::int64_t kCount = 67;

template <class T>
std::vector<T> poisoned(std::size_t size) {
  std::vector<T> x(size);
  auto* bytes = reinterpret_cast<unsigned char*>(x.data());
  std::fill(bytes, bytes + size * sizeof(T), static_cast<unsigned char>(0xff));
  return x;
}

template <class T, class Op>
void expect_same_bits(ReduceOp op, int ranks) {
  std::vector<std::vector<T>> x;
  for (int r = 0; r < ranks; ++r) x.push_back(values_of<T>(r, kCount));
  std::vector<const std::byte*> inputs;
  cuda::ReduceInOrder<T, Op> functor{};
  for (int r = 0; r < ranks; ++r)
    inputs.push_back(reinterpret_cast<const std::byte*>(x[static_cast<std::size_t>(r)].data()));
  cuda::set_inputs(functor, inputs);
  std::vector<T> expected(kCount);
  reduce_in_order(op, dtype_of<T>, inputs, kCount, reinterpret_cast<std::byte*>(expected.data()));

  // In place on the last rank, and to memory apart with a border.
  std::vector<T> apart = poisoned<T>(kCount + 2);
  functor.outputs[0] = apart.data() + 1;
  functor.outputs[1] = x.back().data();
  functor.outputs_count = 2;
  for (std::int64_t i = kCount - 1; i >= 0; --i) functor(i);
  EXPECT_EQ(x.back(), expected) << dtype_of<T> << " of " << ranks;
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), apart.begin() + 1));
  const std::vector<T> border = poisoned<T>(1);
  EXPECT_EQ(std::memcmp(&apart.front(), border.data(), sizeof(T)), 0);
  EXPECT_EQ(std::memcmp(&apart.back(), border.data(), sizeof(T)), 0);
}

template <class T>
void expect_same_sums() {
  for (const int ranks : {1, 2, 3, 8, 9, 12, 100, cuda::kMaxRanks})
    expect_same_bits<T, dkfac::cuda::Sum<SumOf<T>>>(ReduceOp::sum, ranks);
}

}  // namespace

TEST(DeviceFunctors, SumInTheOrderOfTheHost) {
  expect_same_sums<double>();
  expect_same_sums<float>();
  expect_same_sums<bf16>();
  expect_same_sums<f16>();
  expect_same_sums<std::int32_t>();
}

TEST(DeviceFunctors, TakeTheMaximumAndKeepNaN) {
  for (const int ranks : {1, 2, 5}) {
    expect_same_bits<double, dkfac::cuda::Max<double>>(ReduceOp::max, ranks);
    expect_same_bits<float, dkfac::cuda::Max<float>>(ReduceOp::max, ranks);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int bad = 0; bad < 3; ++bad) {
    float x[3] = {-1, -2, -3}, out = 0;
    x[bad] = nan;
    cuda::ReduceInOrder<float, dkfac::cuda::Max<float>> functor{};
    std::vector<const std::byte*> inputs;
    for (const float& each : x) inputs.push_back(reinterpret_cast<const std::byte*>(&each));
    cuda::set_inputs(functor, inputs);
    functor.outputs[0] = &out;
    functor.outputs_count = 1;
    functor(0);
    EXPECT_NE(out, out) << "NaN on rank " << bad;
  }
}

TEST(DeviceFunctors, GatherSegmentsOfAnyLength) {
  const std::vector<std::int64_t> counts = uneven_counts(6);
  const std::int64_t total = sum_before(counts, 6);
  std::vector<std::uint32_t> out = poisoned<std::uint32_t>(static_cast<std::size_t>(total + 1));
  std::vector<std::vector<std::uint32_t>> segments(6);
  cuda::GatherSegments<std::uint32_t> functor{};
  functor.out = out.data();
  std::int64_t longest = 0;
  for (int r = 0; r < 6; ++r) {
    const std::int64_t count = counts[static_cast<std::size_t>(r)];
    functor.offsets[r] = sum_before(counts, r);
    segments[static_cast<std::size_t>(r)].assign(static_cast<std::size_t>(count),
                                                 static_cast<std::uint32_t>(r + 1));
    functor.segments[r] = segments[static_cast<std::size_t>(r)].data();
    longest = std::max(longest, count);
  }
  functor.offsets[6] = total;
  functor.segments[3] = out.data() + functor.offsets[3];  // there already
  for (std::int64_t r = 0; r < 6; ++r)
    for (std::int64_t c = 0; c < longest; ++c) functor(r, c);
  for (int r = 0; r < 6; ++r)
    for (std::int64_t i = functor.offsets[r]; i < functor.offsets[r + 1]; ++i)
      EXPECT_EQ(out[static_cast<std::size_t>(i)],
                r == 3 ? 0xffffffffU : static_cast<std::uint32_t>(r + 1));
  EXPECT_EQ(out.back(), 0xffffffffU);
}

}  // namespace dkfac::comm::testing
