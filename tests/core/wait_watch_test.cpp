#include "core/shared/wait_watch.h"

#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace dkfac {
namespace {

class Counting final : public WaitWatch {
 public:
  void poll() override {
    ++polls;
    if (next != nullptr) watch_waits(next);
  }
  int polls = 0;
  std::shared_ptr<WaitWatch> next;  ///< Watched from the first poll on.
};

class Throwing final : public WaitWatch {
 public:
  void poll() override { throw std::runtime_error("lost"); }
};

TEST(WaitWatch, IsPolledOnceHoweverOftenItIsNamed) {
  EXPECT_FALSE(has_wait_watches());
  EXPECT_NO_THROW(poll_wait_watches());
  const auto a = std::make_shared<Counting>(), b = std::make_shared<Counting>();
  watch_waits(a);
  watch_waits(b);
  watch_waits(a);
  EXPECT_TRUE(has_wait_watches());
  poll_wait_watches();
  EXPECT_EQ(a->polls, 1);
  EXPECT_EQ(b->polls, 1);
}

TEST(WaitWatch, IsForgottenWhenItIsGone) {
  auto a = std::make_shared<Counting>();
  const std::weak_ptr<Counting> weak = a;
  watch_waits(a);
  a.reset();
  EXPECT_TRUE(weak.expired()) << "watching does not keep it";
  EXPECT_NO_THROW(poll_wait_watches());
  EXPECT_FALSE(has_wait_watches());
}

TEST(WaitWatch, BelongsToTheThreadThatNamedIt) {
  const auto a = std::make_shared<Counting>();
  std::thread([&] { watch_waits(a); }).join();
  EXPECT_FALSE(has_wait_watches());
  watch_waits(a);
  std::thread([&] {
    EXPECT_FALSE(has_wait_watches());
    poll_wait_watches();
  }).join();
  EXPECT_EQ(a->polls, 0);
  poll_wait_watches();
  EXPECT_EQ(a->polls, 1);
}

TEST(WaitWatch, EndsTheWaitByAnException) {
  const auto first = std::make_shared<Throwing>();
  const auto second = std::make_shared<Counting>();
  watch_waits(first);
  watch_waits(second);
  EXPECT_THROW(poll_wait_watches(), std::runtime_error);
  EXPECT_EQ(second->polls, 0);
  EXPECT_TRUE(has_wait_watches()) << "the next wait ends as well";
  EXPECT_THROW(poll_wait_watches(), std::runtime_error);
}

TEST(WaitWatch, MayNameOthersWhileItIsPolled) {
  const auto a = std::make_shared<Counting>(), b = std::make_shared<Counting>();
  for (int i = 0; i < 100; ++i) watch_waits(std::make_shared<Counting>());  // Gone at once.
  a->next = b;
  watch_waits(a);
  poll_wait_watches();
  EXPECT_EQ(b->polls, 0) << "known from the next time on";
  poll_wait_watches();
  EXPECT_EQ(a->polls, 2);
  EXPECT_EQ(b->polls, 1);
}

}  // namespace
}  // namespace dkfac
