#include <array>
#include <cstdlib>
#include <memory>
#include <ucontext.h>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/threads.h"

#include "core/shared/parallel.h"
#include "core/shared/workers.h"
#include "support/signal_storm.h"

namespace dkfac {
namespace {

using ops::Trans;
using testing::SignalStorm;

constexpr int kThreads = 2;
constexpr std::int64_t kSignals = 1000;  ///< Over all threads.

struct Sizes {
  std::int64_t m, n, k;
};
/// Of linear layers, preconditioning, convolutions as products, factors of narrow layers; with k
/// short and long.
constexpr std::array kSizes = {Sizes{256, 512, 784}, Sizes{512, 130, 256}, Sizes{64, 64, 4096},
                               Sizes{1, 300, 500},   Sizes{300, 1, 500},   Sizes{2048, 16, 144},
                               Sizes{16, 16, 20000}, Sizes{37, 53, 29}};

/// Numbers whose sums are exact in any order.
std::vector<float> small_integers(std::int64_t count) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<float>(i * 7919 % 1013 % 7 - 3));
  return out;
}

/// All products of kSizes, each way round.
class Products {
 public:
  void compute(Context& ctx) {
    results.clear();
    for (const Sizes& s : kSizes) {
      for (const Trans ta : {Trans::no, Trans::yes}) {
        for (const Trans tb : {Trans::no, Trans::yes}) one(ctx, s, ta, tb);
      }
    }
  }
  std::vector<std::vector<float>> results;

 private:
  void one(Context& ctx, const Sizes& s, Trans ta, Trans tb) {
    const Shape a = ta == Trans::yes ? Shape{s.k, s.m} : Shape{s.m, s.k};
    const Shape b = tb == Trans::yes ? Shape{s.n, s.k} : Shape{s.k, s.n};
    auto& c = results.emplace_back(static_cast<std::size_t>(s.m * s.n));
    ops::gemm(ctx, ta, tb, 1, view_of(numbers_.data(), a), view_of(numbers_.data() + 11, b), 0,
              view_of(c.data(), {s.m, s.n}));
  }
  const std::vector<float> numbers_ = small_integers(512 * 1024);
};

void meet_all_threads(SignalStorm& storm) {
  cpu::parallel_parts(kThreads, [&](int) { storm.meet_this_thread(); });
}

class UnderSignals : public ::testing::Test {
 protected:
  void SetUp() override {
    set_threads(kThreads);
    Context reference(Device::cpu(), {.backend = Backend::reference});
    expected_.compute(reference);
  }
  void TearDown() override { set_threads(before_); }

  Context ctx{Device::cpu(), {.backend = Backend::fast}};
  Products expected_, got_;

 private:
  const int before_ = threads();
};

TEST_F(UnderSignals, ProductsOnAllThreadsKeepTheirBitsAndTheHeap) {
  SignalStorm storm;
  meet_all_threads(storm);
  while (SignalStorm::taken() < kSignals) {
    got_.compute(ctx);
    ASSERT_EQ(got_.results, expected_.results);
    ASSERT_EQ(SignalStorm::off_stack(), 0);
  }
}

TEST_F(UnderSignals, ProductsOfWorkersKeepTheirBitsAndTheHeap) {
  std::array<Products, kThreads> got;
  SignalStorm storm;
  meet_all_threads(storm);
  while (SignalStorm::taken() < kSignals) {
    cpu::parallel_workers(ctx, kThreads, [&](Context& own, int part) {
      got[static_cast<std::size_t>(part)].compute(own);
    });
    for (const Products& one : got) ASSERT_EQ(one.results, expected_.results);
    ASSERT_EQ(SignalStorm::off_stack(), 0);
  }
}

void spin() {
  const std::int64_t before = SignalStorm::taken();
  while (SignalStorm::taken() < before + 3) {
  }
}

/// Control: a stack pointer into the heap is seen.
TEST_F(UnderSignals, AStackElsewhereIsSeen) {
  constexpr std::size_t kBytes = 1 << 18;
  const auto heap = std::make_unique<std::byte[]>(kBytes);
  SignalStorm storm;
  storm.meet_this_thread();
  ucontext_t here, there;
  ASSERT_EQ(getcontext(&there), 0);
  there.uc_stack.ss_sp = heap.get();
  there.uc_stack.ss_size = kBytes;
  there.uc_link = &here;
  makecontext(&there, spin, 0);
  ASSERT_EQ(swapcontext(&here, &there), 0);
  EXPECT_GE(SignalStorm::off_stack(), 2);
}

}  // namespace
}  // namespace dkfac
