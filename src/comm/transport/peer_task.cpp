#include "comm/transport/peer_task.h"

#include <utility>
#include <vector>

#include "dkfac/core/error.h"

#include "comm/call_info.h"

namespace dkfac::comm {

namespace {

constexpr int kPhases = 3;

bool only_compares(HostCall::Kind kind) {
  return kind == HostCall::Kind::barrier || kind == HostCall::Kind::split;
}

}  // namespace

PeerTask::PeerTask(std::shared_ptr<PeerGroup> group, const Options& options, HostCall call)
    : group_(std::move(group)),
      options_(options),
      call_(std::move(call)),
      deadline_(options.timeout_s) {}

PeerTask::~PeerTask() {
  if (complete_) return;
  group_->fail(dropped_text(call_.info, group_->job_rank(group_->rank())));
}

Phase PeerTask::make_phase(int phase) {
  if (phase == 0) {
    if (!only_compares(call_.kind) && options_.check != Check::full) return nullptr;
    return make_header_phase(*group_, call_.info, options_.check, phase);
  }
  const PhaseArguments arguments{*group_, call_, options_.piece_bytes, phase};
  switch (call_.kind) {
    case HostCall::Kind::all_reduce: {
      std::byte* own =
          call_.out + static_cast<std::size_t>(call_.offset(group_->rank())) * call_.element();
      return phase == 1 ? make_reduce_phase(arguments, own) : make_gather_phase(arguments, own);
    }
    case HostCall::Kind::reduce_scatter_v:
      return phase == 1 ? make_reduce_phase(arguments, call_.out) : nullptr;
    case HostCall::Kind::all_gather_v:
    case HostCall::Kind::split:  // gathers every rank's choice
      return phase == 1 ? make_gather_phase(arguments, call_.in) : nullptr;
    case HostCall::Kind::broadcast:
      return phase == 1 ? make_broadcast_phase(arguments) : nullptr;
    case HostCall::Kind::exchange:
      return phase == 1 ? make_exchange_phase(arguments) : nullptr;
    case HostCall::Kind::barrier:
      return nullptr;
  }
  return nullptr;
}

bool PeerTask::advance_phases() {
  while (phase_ < kPhases) {
    if (running_phase_ == nullptr) running_phase_ = make_phase(phase_);
    if (running_phase_ != nullptr && !running_phase_->advance()) return false;
    running_phase_.reset();
    ++phase_;
  }
  return true;
}

std::string PeerTask::time_limit_text() const {
  std::vector<int> late = running_phase_->missing();
  for (int& rank : late) rank = group_->job_rank(rank);
  // In the second phase of an all_reduce all ranks have arrived, but a peer may itself wait for
  // another rank's data.
  const char* verb = phase_ == 0   ? " not arrived"
                     : phase_ == 1 ? " not sent or taken its data"
                                   : " not sent its sums, or taken ours";
  // Along a tree the partner of a step may itself wait for another rank.
  const bool compared = options_.check == Check::full;
  const bool by_steps = (phase_ > 0 || !compared) && group_->size() > kMostInRankOrder;
  const char* waits_too =
      !by_steps  ? ""
      : compared ? ", or waits for another: all have begun this call, and one has not gone on"
                 : ", or waits for another (Check::full, run.comm_check = \"full\", names the one "
                   "that is late)";
  return detail::concat("[", call_.info.op, "] rank ", group_->job_rank(group_->rank()), " waited ",
                        deadline_.seconds(), " s (timeout_s) at ", call_.info.describe(), "; ",
                        rank_list(late), (late.size() == 1 ? " has" : " have"), verb, waits_too,
                        "; look there, or raise the limit");
}

std::string PeerTask::located(const std::exception& error) const {
  return detail::concat(error.what(), " (rank ", group_->job_rank(group_->rank()), " at ",
                        call_.info.describe(), ")");
}

bool PeerTask::advance() {
  deadline_.start();
  group_->throw_if_failed();
  try {
    complete_ = advance_phases();
    if (!complete_ && deadline_.passed()) throw CommError(time_limit_text());
  } catch (const CommError& error) {
    const std::string text = located(error);
    group_->fail(text);
    throw CommError(text);
  } catch (const std::exception& error) {
    // Such as a lack of memory. The destructor would only know that the task is dropped.
    group_->fail(located(error));
    throw;
  }
  return complete_;
}

}  // namespace dkfac::comm
