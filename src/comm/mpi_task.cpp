#include "comm/mpi_task.h"

#include <utility>
#include <vector>

#include "dkfac/core/error.h"

#include "comm/call_info.h"

namespace dkfac::comm {

namespace {

constexpr int kPhases = 3;

bool moves_data(HostCall::Kind kind) {
  return kind != HostCall::Kind::barrier && kind != HostCall::Kind::split;
}

}  // namespace

MpiTask::MpiTask(std::shared_ptr<MpiGroup> group, const Options& options, HostCall call)
    : group_(std::move(group)),
      options_(options),
      call_(std::move(call)),
      deadline_(options.timeout_s) {}

MpiTask::~MpiTask() {
  if (complete_) return;
  group_->fail(detail::concat("[", call_.info.op, "] rank ", group_->rank(), " dropped ",
                              call_.info.describe(),
                              " before it was complete; wait for a stream before destroying it"));
}

std::unique_ptr<MpiFlow> MpiTask::make_flow(int phase) {
  const int tag = group_->tag(call_.info.sequence, phase);
  const std::int64_t piece = options_.piece_bytes;
  if (phase == 0) {
    if (moves_data(call_.kind) && options_.check != Check::full) return nullptr;
    return make_header_flow(*group_, call_.info, tag);
  }
  switch (call_.kind) {
    case HostCall::Kind::all_reduce: {
      std::byte* own =
          call_.out + static_cast<std::size_t>(call_.offset(group_->rank())) * call_.element();
      return phase == 1 ? make_reduce_flow(*group_, call_, piece, own, tag)
                        : make_gather_flow(*group_, call_, piece, own, tag);
    }
    case HostCall::Kind::reduce_scatter_v:
      return phase == 1 ? make_reduce_flow(*group_, call_, piece, call_.out, tag) : nullptr;
    case HostCall::Kind::all_gather_v:
      return phase == 1 ? make_gather_flow(*group_, call_, piece, call_.in, tag) : nullptr;
    case HostCall::Kind::broadcast:
      return phase == 1 ? make_broadcast_flow(*group_, call_, piece, tag) : nullptr;
    case HostCall::Kind::barrier:
    case HostCall::Kind::split:
      return nullptr;
  }
  return nullptr;
}

bool MpiTask::advance_flows() {
  while (phase_ < kPhases) {
    if (flow_ == nullptr) flow_ = make_flow(phase_);
    if (flow_ != nullptr && !flow_->advance()) return false;
    flow_.reset();
    ++phase_;
  }
  return true;
}

std::string MpiTask::time_limit_text() const {
  const std::vector<int> late = flow_->missing();
  const char* verb = phase_ == 0 ? " not arrived" : " not sent or taken its data";
  return detail::concat("[", call_.info.op, "] rank ", group_->rank(), " waited ",
                        deadline_.seconds(), " s (timeout_s) at ", call_.info.describe(), "; ",
                        rank_list(late), (late.size() == 1 ? " has" : " have"), verb,
                        "; look there, or raise the limit");
}

bool MpiTask::advance() {
  deadline_.start();
  group_->throw_if_failed();
  try {
    complete_ = advance_flows();
    if (!complete_ && deadline_.passed()) throw CommError(time_limit_text());
  } catch (const CommError& error) {
    const std::string text =
        detail::concat(error.what(), " (rank ", group_->rank(), " at ", call_.info.describe(), ")");
    group_->fail(text);
    throw CommError(text);
  }
  return complete_;
}

}  // namespace dkfac::comm
