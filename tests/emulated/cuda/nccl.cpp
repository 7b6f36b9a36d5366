#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unistd.h>

#include "nccl_comm.h"
#include "state.h"

// The part of NCCL that the library calls. Ranks are threads of this process; a rank of another
// process is rejected. A group of calls is one piece of work, which runs once every rank has
// enqueued its part in each of them. DKFAC_EMULATED_NCCL_FAIL=<rank> makes the first collective of
// that rank fail; DKFAC_EMULATED_NCCL_NO_SPLIT=<rank>, or all, makes it reject a split.
namespace {

using emulated::NcclPart;
using emulated::state;
using Kind = NcclPart::Kind;
using Lock = std::scoped_lock<emulated::DeviceMutex>;

constexpr int kPolls = 3;

struct Queued {
  ncclComm* comm;
  NcclPart part;
};
thread_local int depth = 0;
thread_local const char* last_refusal = "emulated";
thread_local std::vector<Queued> queued;

/// Content of an id.
struct Id {
  std::uint64_t number = 0;
  std::int64_t process = 0;
};

std::map<std::string, std::shared_ptr<emulated::NcclFabric>>& fabrics() {
  static auto* const all = new std::map<std::string, std::shared_ptr<emulated::NcclFabric>>;
  return *all;
}

bool refuses_to_split(int rank) {
  const char* refuses = std::getenv("DKFAC_EMULATED_NCCL_NO_SPLIT");
  return refuses != nullptr &&
         (std::string_view(refuses) == "all" || std::string_view(refuses) == std::to_string(rank));
}

/// Returns true once all ranks have called; the new communicator is then available.
bool finish_split(ncclComm* comm) {
  if (comm->child == nullptr) return true;
  auto& split = comm->fabric->splits[comm->splits - 1];
  if (split.wishes.size() < static_cast<std::size_t>(comm->fabric->size)) return false;
  ncclComm** const child = std::exchange(comm->child, nullptr);
  const auto mine = split.wishes[comm->rank];
  const int color = mine.first;
  if (color == NCCL_SPLIT_NOCOLOR) return true;
  auto& fabric = split.by_color[color];
  const bool first = fabric == nullptr;  // The others find it filled: their calls read it unlocked.
  if (first) fabric = std::make_shared<emulated::NcclFabric>();
  auto* made = new ncclComm;
  for (const auto& [rank, wish] : split.wishes) {
    if (wish.first != color) continue;
    if (first) fabric->joined[fabric->size++] = true;
    if (std::tie(wish.second, rank) < std::tie(mine.second, comm->rank)) ++made->rank;
  }
  made->fabric = fabric;
  made->blocking = comm->blocking;
  made->polls = comm->blocking ? 0 : kPolls;
  *child = made;
  return true;
}

/// A call of a group in a collective, and its rank there.
struct JoinedCall {
  std::shared_ptr<emulated::NcclMeeting> meeting;
  int as;
};

bool idle(ncclComm* comm) {
  std::erase_if(comm->meetings, [](const auto& meeting) { return meeting->done; });
  return comm->meetings.empty();
}

JoinedCall join(ncclComm* comm, NcclPart part) {
  std::shared_ptr<emulated::NcclMeeting>* found = nullptr;
  int as = comm->rank;
  if (part.kind == Kind::message) {
    const bool sends = part.send != nullptr;
    const int peer = part.root;
    const int from = sends ? comm->rank : peer, to = sends ? peer : comm->rank;
    auto& number = sends ? comm->sent[peer] : comm->received[peer];
    found = &comm->fabric->messages[{from, to, number++}];
    as = sends ? 0 : 1;
    part.root = 0;
  } else {
    found = &comm->fabric->collectives[comm->collectives++];
  }
  if (*found == nullptr) *found = std::make_shared<emulated::NcclMeeting>();
  (*found)->expected =
      part.kind == Kind::message ? 2 : static_cast<std::size_t>(comm->fabric->size);
  (*found)->parts[as] = part;
  if (comm->meetings.size() > 100) (void)idle(comm);
  comm->meetings.push_back(*found);
  return {*found, as};
}

bool all_came(const JoinedCall& call) {
  auto& meeting = *call.meeting;
  if (meeting.done) return true;
  if (meeting.parts.size() < meeting.expected) return false;
  for (const auto& [as, part] : meeting.parts) {
    if (as == call.as) continue;
    if (*part.aborted || !emulated::advance(part.stream, part.ticket - 1)) return false;
  }
  return true;
}

void submit(ncclComm* comm, std::vector<NcclPart> parts) {
  CUstream_st* stream = parts.front().stream;
  const emulated::Ticket ticket = emulated::last(stream) + 1;
  if (comm->fails) {
    *comm->broken = true;
    comm->error = ncclRemoteError;
  }
  std::vector<JoinedCall> calls;
  for (NcclPart& part : parts) {
    part.ticket = ticket;
    part.aborted = comm->aborted;
    calls.push_back(join(comm, part));
  }
  comm->polls = comm->blocking ? 0 : 1;
  const auto aborted = comm->aborted, broken = comm->broken;
  emulated::submit_when(
      stream,
      [calls, aborted, broken] {
        if (*aborted) return true;
        if (*broken) return false;
        for (const JoinedCall& call : calls)
          if (!all_came(call)) return false;
        return true;
      },
      [calls, aborted] {
        if (*aborted) return;
        for (const JoinedCall& call : calls) {
          if (std::exchange(call.meeting->done, true)) continue;
          emulated::execute(*call.meeting);
        }
      });
}

ncclResult_t flush() {
  const Lock lock(state().mutex);
  const auto calls = std::exchange(queued, {});
  std::map<ncclComm*, std::vector<NcclPart>> by_comm;
  for (const Queued& call : calls) by_comm[call.comm].push_back(call.part);
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, parts] : by_comm) {
    for (const NcclPart& part : parts)
      if (part.stream != parts.front().stream) return ncclInvalidUsage;
    submit(comm, parts);
    if (comm->polls > 0) result = ncclInProgress;
  }
  return result;
}

ncclResult_t enqueue(ncclComm_t comm, NcclPart part) {
  if (comm == nullptr || part.stream == nullptr || part.root < 0 ||
      part.root >= comm->fabric->size || part.type == ncclNumTypes)
    return ncclInvalidArgument;
  if (comm->error != ncclSuccess) return comm->error;
  if (comm->polls > 0) return ncclInvalidUsage;  // The call before is still in progress.
  const auto reachable = [&](const void* data) {
    return data == nullptr || emulated::is_device_memory(data) || emulated::is_pinned_memory(data);
  };
  if (part.count > 0 && (!reachable(part.send) || !reachable(part.recv)))
    return ncclInvalidArgument;
  queued.push_back({comm, part});
  return depth > 0 ? ncclSuccess : flush();
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t code) {
  return code == ncclSuccess       ? "no error"
         : code == ncclInProgress  ? "NCCL operation in progress"
         : code == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "invalid argument or usage";
}
const char* ncclGetLastError(ncclComm_t) { return last_refusal; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::uint64_t next = 0;
  const Lock lock(state().mutex);
  std::memset(id, 0, sizeof *id);
  const Id made{.number = ++next, .process = ::getpid()};
  std::memcpy(id->internal, &made, sizeof made);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Lock lock(state().mutex);
  if (out == nullptr || size < 1 || rank < 0 || rank >= size || config == nullptr ||
      config->magic != 0xcafebeef)
    return ncclInvalidArgument;
  Id made;
  std::memcpy(&made, id.internal, sizeof made);
  if (made.process != ::getpid()) {
    last_refusal = "the emulated NCCL joins threads of one process alone";
    return ncclInvalidUsage;
  }
  auto& fabric = fabrics()[std::string(id.internal, sizeof id.internal)];
  if (fabric == nullptr) fabric = std::make_shared<emulated::NcclFabric>();
  if (fabric->size != 0 && fabric->size != size) return ncclInvalidArgument;
  if (std::exchange(fabric->joined[rank], true)) return ncclInvalidArgument;
  fabric->size = size;
  auto* comm = new ncclComm;
  comm->fabric = fabric;
  comm->rank = rank;
  comm->blocking = config->blocking != 0;
  const char* fails = std::getenv("DKFAC_EMULATED_NCCL_FAIL");
  comm->fails = fails != nullptr && std::atoi(fails) == rank;
  *out = comm;
  emulated::notify();
  if (comm->blocking) {
    emulated::block_until([&] { return fabric->joined.size() == static_cast<std::size_t>(size); });
    return ncclSuccess;
  }
  comm->polls = kPolls;
  return ncclInProgress;
}
ncclResult_t ncclCommInitRank(ncclComm_t* out, int size, ncclUniqueId id, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  return ncclCommInitRankConfig(out, size, id, rank, &config);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out, ncclConfig_t*) {
  const Lock lock(state().mutex);
  if (comm == nullptr || out == nullptr || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
    return ncclInvalidArgument;
  // Operations in flight on the communicator might block the split for ever.
  if (comm->polls > 0 || !idle(comm) || refuses_to_split(comm->rank)) return ncclInvalidUsage;
  *out = nullptr;
  comm->child = out;
  comm->fabric->splits[comm->splits++].wishes[comm->rank] = {color, key};
  emulated::notify();
  if (comm->blocking) {
    emulated::block_until([&] { return finish_split(comm); });
    return ncclSuccess;
  }
  comm->polls = kPolls;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Lock lock(state().mutex);
  if (comm == nullptr || error == nullptr) return ncclInvalidArgument;
  const bool complete = comm->fabric->joined.size() == static_cast<std::size_t>(comm->fabric->size);
  if (comm->polls > 0 && complete && finish_split(comm)) --comm->polls;
  *error = comm->error != ncclSuccess ? comm->error
           : comm->polls > 0          ? ncclInProgress
                                      : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Lock lock(state().mutex);
  if (comm == nullptr) return ncclInvalidArgument;
  comm->polls = comm->blocking ? 0 : kPolls;
  return comm->blocking ? ncclSuccess : ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Lock lock(state().mutex);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Lock lock(state().mutex);
  if (comm == nullptr) return ncclInvalidArgument;
  *comm->aborted = true;
  emulated::notify();
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->fabric->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  return --depth > 0 ? ncclSuccess : flush();
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, {Kind::all_reduce, send, recv, count, type, op, 0, stream, 0, nullptr});
}
ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, {Kind::reduce, send, recv, count, type, op, root, stream, 0, nullptr});
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm,
                 {Kind::broadcast, send, recv, count, type, ncclSum, root, stream, 0, nullptr});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, {Kind::reduce_scatter, send, recv, count, type, op, 0, stream, 0, nullptr});
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, {Kind::all_gather, send, recv, count, type, ncclSum, 0, stream, 0, nullptr});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm,
                 {Kind::message, send, nullptr, count, type, ncclSum, peer, stream, 0, nullptr});
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return enqueue(comm,
                 {Kind::message, nullptr, recv, count, type, ncclSum, peer, stream, 0, nullptr});
}

}  // extern "C"
