#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/threads.h"

#include "support/each_backend.h"
#include "support/matrices.h"
#include "support/padded.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using testing::Dense;
using testing::Padded;

class SeveralThreads : public testing::EachBackend {};
DKFAC_EACH_BACKEND(SeveralThreads);

/// Ranks of one process work at the same time, each with a context of its own.
void expect_equal_results(Backend backend, DType dtype, int inner_threads) {
  constexpr int kThreads = 4, kRounds = 20;
  Random random(1);
  const Dense x = testing::random_integers(70, 90, random);
  const Dense y = testing::random_integers(70, 40, random);
  const Dense square = testing::lower(testing::multiply(testing::transpose(x), x));
  const Dense product = testing::multiply(testing::transpose(x), y);
  const testing::KnownSpd known = testing::min_matrix(100);
  std::atomic<int> wrong{0}, rounds{0};
  const auto work = [&] {
    Context own(Device::cpu(), {.backend = backend, .threads = inner_threads});
    for (int round = 0; round < kRounds; ++round) {
      Padded px(dtype, x), py(dtype, y), c(dtype, 90, 90), d(dtype, 90, 40);
      Padded a = Padded::lower(dtype, known.a);
      std::int32_t info[2] = {-1, -1};
      ops::syrk(own, 1, px.view(), 0, c.view());
      ops::gemm(own, ops::Trans::yes, ops::Trans::no, 1, px.view(), py.view(), 0, d.view());
      ops::potrf(own, a.view(), view_of(info, {1}));
      ops::potri(own, a.view(), view_of(info + 1, {1}));
      wrong += testing::lower(c.values()).data != square.data;
      wrong += d.values().data != product.data;
      wrong += info[0] != 0 || info[1] != 0;
      wrong += testing::lower(a.values()).data != testing::lower(known.inverse).data;
      ++rounds;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(rounds, kThreads * kRounds);
}

TEST_P(SeveralThreads, GetTheSameResultsAsOne) {
  expect_equal_results(GetParam().backend, dtype(), 1);
}

}  // namespace
}  // namespace dkfac
