#include "dkfac/comm/in_process.h"

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/core/error.h"

#include "comm/call_info.h"
#include "comm/transport/cuda/device_work.h"
#include "comm/transport/deadline.h"
#include "comm/transport/in_process_group.h"
#include "comm/transport/in_process_moves.h"

namespace dkfac::comm {

namespace {

/// Scope in which this rank accesses memory of other ranks.
class Moving {
 public:
  Moving(InProcessGroup& group, Rendezvous& point) : group_(group), point_(point) {
    group_.begin_move(point_);
  }
  ~Moving() { group_.end_move(point_); }
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;

 private:
  InProcessGroup& group_;
  Rendezvous& point_;
};

/// Task of one rank in a collective: it arrives, waits for the others, moves its part in pieces,
/// and waits until no rank needs its memory.
class InProcessTask final : public HostTask {
 public:
  /// `split` receives the result of a split; `side` is set for device memory.
  InProcessTask(std::shared_ptr<InProcessGroup> group, int rank, const Options& options,
                HostCall call, SplitResult* split, std::shared_ptr<DeviceSide> side)
      : group_(std::move(group)),
        rank_(rank),
        call_(std::move(call)),
        split_(split),
        side_(std::move(side)),
        piece_(whole_elements(options.piece_bytes) / static_cast<std::int64_t>(call_.element())),
        deadline_(options.timeout_s) {}
  ~InProcessTask() override {
    if (stage_ == Stage::complete) return;
    const std::string reason = dropped_text(call_.info, group_->job_rank(rank_));
    if (stage_ == Stage::created) {
      group_->fail(reason);
    } else {
      group_->withdraw(rank_, call_, reason);
    }
  }
  InProcessTask(const InProcessTask&) = delete;
  InProcessTask& operator=(const InProcessTask&) = delete;

  bool advance() override {
    try {
      return advance_stages();
    } catch (const CommError&) {  // The group has failed by it.
      throw;
    } catch (const std::exception& error) {
      // Such as a lack of memory. The destructor would only know that the task is dropped.
      group_->fail(detail::concat(error.what(), " (rank ", group_->job_rank(rank_), " at ",
                                  call_.info.describe(), ")"));
      throw;
    }
  }

 private:
  enum class Stage { created, arriving, moving, finished, complete };

  bool advance_stages() {
    deadline_.start();
    if (stage_ == Stage::created) {
      stage_ = Stage::arriving;
      if (side_ != nullptr) side_->ready.record(call_.stream);
      group_->arrive(rank_, call_, side_);
    }
    if (stage_ == Stage::arriving) arrive();
    if (stage_ == Stage::moving) side_ == nullptr ? move() : move_on_device();
    if (stage_ == Stage::finished && group_->all_finished(*point_)) complete();
    if (stage_ != Stage::complete && deadline_.passed())
      group_->time_out(rank_, call_, deadline_.seconds());
    return stage_ == Stage::complete;
  }

  void arrive() {
    point_ = group_->rendezvous(call_);
    if (point_ == nullptr) return;
    if (split_ != nullptr) *split_ = point_->splits[static_cast<std::size_t>(rank_)];
    stage_ = Stage::moving;
  }

  void move() {
    const std::int64_t count = std::min(piece_, elements_of_part(call_, rank_) - moved_);
    if (count > 0) {
      const Moving moving(*group_, *point_);
      move_part(point_->calls, rank_, moved_, count);
      moved_ += count;
    }
    if (moved_ < elements_of_part(call_, rank_)) return;
    group_->finish(rank_, *point_);
    stage_ = Stage::finished;
  }

  void move_on_device() {
    const Moving moving(*group_, *point_);
    for (const auto& side : point_->sides) call_.stream.wait(side->ready);
    move_part_on_device(point_->calls, rank_);
    side_->done.record(call_.stream);
    group_->finish(rank_, *point_);
    stage_ = Stage::finished;
  }

  void complete() {
    if (side_ != nullptr)
      for (const auto& side : point_->sides) call_.stream.wait(side->done);
    group_->release(call_);
    stage_ = Stage::complete;
  }

  std::shared_ptr<InProcessGroup> group_;
  int rank_;
  HostCall call_;
  SplitResult* split_;
  std::shared_ptr<DeviceSide> side_;
  std::int64_t piece_;
  Deadline deadline_;
  Stage stage_ = Stage::created;
  Rendezvous* point_ = nullptr;
  std::int64_t moved_ = 0;
};

class InProcessCommunicator final : public HostCommunicator {
 public:
  InProcessCommunicator(std::shared_ptr<InProcessGroup> group, int rank, Options options)
      : HostCommunicator(rank, group->size(), options), group_(std::move(group)) {}
  ~InProcessCommunicator() override { group_->leave(rank(), sequence()); }
  InProcessCommunicator(const InProcessCommunicator&) = delete;
  InProcessCommunicator& operator=(const InProcessCommunicator&) = delete;

  [[nodiscard]] std::string_view backend() const override { return "in_process"; }
  [[nodiscard]] bool failed() const override { return group_->failed(); }
  [[nodiscard]] bool supports(Device device) const override {
    return !device.is_cuda() || cuda::is_built();
  }

 protected:
  std::unique_ptr<HostTask> make_task(HostCall call) override {
    return std::make_unique<InProcessTask>(group_, rank(), options(), std::move(call), nullptr,
                                           nullptr);
  }
  void run_on_device(HostCall call) override {
    // One per device; usually there is only one.
    auto& side = sides_[call.stream.device().index];
    if (side == nullptr) side = std::make_shared<DeviceSide>(call.stream.device());
    run(std::make_unique<InProcessTask>(group_, rank(), options(), std::move(call), nullptr, side));
  }
  void throw_if_failed() override { group_->throw_if_failed(); }
  std::shared_ptr<Communicator> do_split(int color, int key, CallInfo info) override {
    throw_if_failed();
    HostCall call;
    call.kind = HostCall::Kind::split;
    call.info = std::move(info);
    call.color = color;
    call.key = key;
    SplitResult split;
    run(std::make_unique<InProcessTask>(group_, rank(), options(), std::move(call), &split,
                                        nullptr));
    if (split.group == nullptr) return nullptr;
    return std::make_shared<InProcessCommunicator>(split.group, split.rank, options());
  }
  void do_abort(std::string_view reason) noexcept override {
    group_->fail(
        detail::concat("[abort] rank ", group_->job_rank(rank()), " aborted the group: ", reason));
  }

 private:
  std::shared_ptr<InProcessGroup> group_;
  std::map<int, std::shared_ptr<DeviceSide>> sides_;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> make_in_process(int size, Options options) {
  DKFAC_CHECK(size > 0, "[in_process] size is ", size, "; it must be > 0");
  std::vector<int> job_ranks(static_cast<std::size_t>(size));
  std::iota(job_ranks.begin(), job_ranks.end(), 0);
  const auto group = std::make_shared<InProcessGroup>(std::move(job_ranks), nullptr);
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (int r = 0; r < size; ++r)
    ranks.push_back(std::make_shared<InProcessCommunicator>(group, r, options));
  return ranks;
}

}  // namespace dkfac::comm
