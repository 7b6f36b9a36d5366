#include "core/shared/wait_watch.h"

#include <algorithm>
#include <vector>

namespace dkfac {
namespace {

std::vector<std::weak_ptr<WaitWatch>>& watches() {
  thread_local std::vector<std::weak_ptr<WaitWatch>> mine;
  return mine;
}

void forget_the_gone() {
  std::erase_if(watches(), [](const auto& watch) { return watch.expired(); });
}

}  // namespace

void watch_waits(const std::shared_ptr<WaitWatch>& watch) {
  forget_the_gone();
  const auto same = [&](const auto& other) { return other.lock() == watch; };
  if (std::none_of(watches().begin(), watches().end(), same)) watches().push_back(watch);
}

bool has_wait_watches() noexcept {
  if (watches().empty()) return false;
  forget_the_gone();
  return !watches().empty();
}

void poll_wait_watches() {
  // Copied: a poll may itself wait and poll.
  const auto now = watches();
  for (const auto& weak : now)
    if (const auto watch = weak.lock()) watch->poll();
}

}  // namespace dkfac
