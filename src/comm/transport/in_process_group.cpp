#include "comm/transport/in_process_group.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <tuple>
#include <utility>

#include "dkfac/core/error.h"

#include "comm/call_info.h"

namespace dkfac::comm {

namespace {

constexpr std::uint64_t kPresent = std::numeric_limits<std::uint64_t>::max();

/// Lists each rank with the device of its stream.
std::string devices_of(const std::vector<const HostCall*>& calls, std::span<const int> ranks) {
  std::string text;
  for (std::size_t r = 0; r < calls.size(); ++r)
    text += detail::concat(r == 0 ? "" : ", ", calls[r]->stream.device(), " on rank ", ranks[r]);
  return text;
}

std::string disagreement_of(const std::vector<const HostCall*>& calls, std::span<const int> ranks) {
  std::vector<CallDigest> digests;
  digests.reserve(calls.size());
  for (const HostCall* call : calls) digests.push_back(digest_of(call->info));
  if (std::string text = disagreement(digests, ranks); !text.empty()) return text;
  const Device first = calls.front()->stream.device();
  if (std::all_of(calls.begin(), calls.end(),
                  [&](const HostCall* call) { return call->stream.device() == first; }))
    return {};
  return detail::concat("[collective] ", calls.front()->info.describe(), " got memory of ",
                        devices_of(calls, ranks), "; the ranks of one process share one device");
}

void follow(const Stream& stream, const Event& event) noexcept {
  try {
    stream.wait(event);
  } catch (const std::exception&) {
    // The device has failed and accepts no more work.
  }
}

std::vector<SplitResult> split_results(const std::vector<const HostCall*>& calls,
                                       const std::shared_ptr<InProcessGroup>& parent) {
  std::map<int, std::vector<std::tuple<int, int>>> members;  // color -> (key, rank), to be sorted
  for (std::size_t r = 0; r < calls.size(); ++r) {
    if (calls[r]->color >= 0)
      members[calls[r]->color].emplace_back(calls[r]->key, static_cast<int>(r));
  }
  std::vector<SplitResult> splits(calls.size());
  for (auto& [color, ranks] : members) {
    std::sort(ranks.begin(), ranks.end());
    std::vector<int> job_ranks;
    for (const auto& [key, rank] : ranks) job_ranks.push_back(parent->job_rank(rank));
    const auto group = std::make_shared<InProcessGroup>(std::move(job_ranks), parent);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      splits[static_cast<std::size_t>(std::get<1>(ranks[i]))] = {group, static_cast<int>(i)};
  }
  return splits;
}

}  // namespace

InProcessGroup::InProcessGroup(std::vector<int> job_ranks, std::shared_ptr<InProcessGroup> parent)
    : job_ranks_(std::move(job_ranks)),
      size_(static_cast<int>(job_ranks_.size())),
      parent_(std::move(parent)),
      last_call_(job_ranks_.size(), kPresent) {}

bool InProcessGroup::failed() const noexcept {
  return failed_.load(std::memory_order_acquire) || (parent_ != nullptr && parent_->failed());
}

std::string InProcessGroup::failure_of_parent() {
  if (parent_ == nullptr || !parent_->failed()) return {};
  const Lock lock(parent_->mutex_);
  return parent_->failure_.empty() ? parent_->failure_of_parent() : parent_->failure_;
}

void InProcessGroup::throw_if_failed(const Lock& /*held*/) {
  if (!failure_.empty()) throw CommError(failure_);
  if (const std::string above = failure_of_parent(); !above.empty()) throw CommError(above);
}

void InProcessGroup::throw_if_failed() { throw_if_failed(Lock(mutex_)); }

void InProcessGroup::fail_and_throw(const Lock& held, std::string text) {
  throw_if_failed(held);
  failure_ = std::move(text);
  failed_.store(true, std::memory_order_release);
  throw CommError(failure_);
}

void InProcessGroup::fail(std::string_view reason) noexcept {
  const Lock lock(mutex_);
  if (!failure_.empty()) return;
  // A failure of the parent is the cause of later failures here.
  failure_ = failure_of_parent();
  if (failure_.empty()) failure_ = reason;
  failed_.store(true, std::memory_order_release);
}

Rendezvous& InProcessGroup::rendezvous_of(std::uint64_t sequence) {
  Rendezvous& point = rendezvous_[sequence];
  if (point.calls.empty()) {
    point.calls.resize(static_cast<std::size_t>(size_));
    point.finished.resize(static_cast<std::size_t>(size_));
    point.sides.resize(static_cast<std::size_t>(size_));
  }
  return point;
}

std::vector<int> InProcessGroup::missing(const Rendezvous& point) const {
  std::vector<int> ranks;
  const bool arriving = point.arrived < size_;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (arriving ? point.calls[i] == nullptr : point.finished[i] == 0) ranks.push_back(r);
  }
  return ranks;
}

void InProcessGroup::arrive(int rank, const HostCall& call, std::shared_ptr<DeviceSide> side) {
  const Lock lock(mutex_);
  throw_if_failed(lock);
  Rendezvous& point = rendezvous_of(call.info.sequence);
  point.calls[static_cast<std::size_t>(rank)] = &call;
  point.sides[static_cast<std::size_t>(rank)] = std::move(side);
  if (++point.arrived < size_) return;
  if (std::string text = disagreement_of(point.calls, job_ranks_); !text.empty())
    fail_and_throw(lock, std::move(text));
  if (call.kind == HostCall::Kind::split)
    point.splits = split_results(point.calls, shared_from_this());
}

Rendezvous* InProcessGroup::rendezvous(const HostCall& call) {
  const Lock lock(mutex_);
  throw_if_failed(lock);
  Rendezvous& point = rendezvous_of(call.info.sequence);
  if (point.arrived == size_) return &point;
  for (const int r : missing(point)) {
    const std::uint64_t last = last_call_[static_cast<std::size_t>(r)];
    if (last >= call.info.sequence) continue;
    fail_and_throw(
        lock, detail::concat("[", call.info.op, "] rank ", job_rank(r), " left the group after ",
                             last, " calls, so ", call.info.describe(),
                             " can never complete; every rank must issue it"));
  }
  return nullptr;
}

void InProcessGroup::begin_move(Rendezvous& point) {
  const Lock lock(mutex_);
  throw_if_failed(lock);
  ++point.moving;
}

void InProcessGroup::end_move(Rendezvous& point) noexcept {
  const Lock lock(mutex_);
  if (--point.moving == 0) idle_.notify_all();
}

void InProcessGroup::finish(int rank, Rendezvous& point) {
  const Lock lock(mutex_);
  throw_if_failed(lock);
  point.finished[static_cast<std::size_t>(rank)] = 1;
  ++point.done;
}

bool InProcessGroup::all_finished(const Rendezvous& point) {
  const Lock lock(mutex_);
  // Checked first: a collective that all have finished is complete even if the group failed since.
  if (point.done == size_) return true;
  throw_if_failed(lock);
  return false;
}

void InProcessGroup::release(const HostCall& call) noexcept {
  const Lock lock(mutex_);
  const auto found = rendezvous_.find(call.info.sequence);
  if (++found->second.released == size_) rendezvous_.erase(found);
}

void InProcessGroup::withdraw(int rank, const HostCall& call, std::string_view reason) noexcept {
  fail(reason);
  Lock lock(mutex_);
  const auto found = rendezvous_.find(call.info.sequence);
  if (found == rendezvous_.end()) return;
  Rendezvous& point = found->second;
  // In a failed group no rank begins to move data, and those that move stop after one piece.
  idle_.wait(lock, [&] { return point.moving == 0; });
  point.calls[static_cast<std::size_t>(rank)] = nullptr;
  // Work that they have already enqueued on their streams still runs.
  for (const auto& side : point.sides)
    if (side != nullptr) follow(call.stream, side->done);
}

void InProcessGroup::time_out(int rank, const HostCall& call, double limit_s) {
  const Lock lock(mutex_);
  const Rendezvous& point = rendezvous_of(call.info.sequence);
  const char* verb = point.arrived < size_ ? " not arrived" : " not finished";
  std::vector<int> late = missing(point);
  for (int& each : late) each = job_rank(each);
  fail_and_throw(lock, detail::concat("[", call.info.op, "] rank ", job_rank(rank), " waited ",
                                      limit_s, " s (timeout_s) at ", call.info.describe(), "; ",
                                      rank_list(late), (late.size() == 1 ? " has" : " have"), verb,
                                      "; look there, or raise the limit"));
}

void InProcessGroup::leave(int rank, std::uint64_t last) noexcept {
  const Lock lock(mutex_);
  last_call_[static_cast<std::size_t>(rank)] = last;
}

}  // namespace dkfac::comm
