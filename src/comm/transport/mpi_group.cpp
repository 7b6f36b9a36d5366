#include "comm/transport/mpi_group.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "dkfac/core/error.h"

#include "comm/transport/deadline.h"
#include "comm/transport/leaked.h"
#include "comm/transport/mpi_error.h"
#include "comm/transport/mpi_transfers.h"
#include "core/shared/backoff.h"

namespace dkfac::comm {

namespace {

constexpr std::uint64_t kMpiPhases = 3;
constexpr int kMaxId = 4095;  ///< Largest group id; tags are divided among kMaxId + 1 groups.
constexpr std::size_t kNoticeBytes = 1024;  ///< Small enough for MPI's eager protocol.
constexpr int kNoticePolls = 200;

/// Duplicates `comm` within a time limit. It is non-blocking, so that a missing rank does not block
/// the process forever.
MPI_Comm duplicate_within(MPI_Comm comm, double limit_s) {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(comm, &copy, &request), "MPI_Comm_idup");
  Deadline deadline(limit_s);
  deadline.start();
  Backoff backoff;
  for (int done = 0; done == 0;) {
    backoff.poll([&] {
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test of MPI_Comm_idup");
    });
    if (done != 0) break;
    if (deadline.passed()) {
      throw CommError(detail::concat("[communicator] the ranks did not connect within ", limit_s,
                                     " s (timeout_s); every rank has to make the communicator"));
    }
  }
  check_mpi(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

bool mpi_is_over() {
  int finalized = 0;
  return MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0;
}

}  // namespace

void MpiGroup::copy(MPI_Comm comm, const Options& options) {
  data_ = duplicate_within(comm, options.timeout_s);
  checks_ = duplicate_within(comm, options.timeout_s);
  int* limit = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(data_, MPI_TAG_UB, static_cast<void*>(&limit), &found),
            "MPI_Comm_get_attr of MPI_TAG_UB");
  tag_limit_ = found != 0 ? *limit : 32767;  // the minimum that MPI guarantees
}

std::shared_ptr<MpiGroup> MpiGroup::duplicate(MPI_Comm comm, const Options& options) {
  const std::shared_ptr<MpiGroup> group(new MpiGroup());
  group->copy(comm, options);
  int rank = 0, size = 1;
  check_mpi(MPI_Comm_rank(group->data_, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(group->data_, &size), "MPI_Comm_size");
  group->make_whole(rank, size);
  return group;
}

std::shared_ptr<PeerGroup> MpiGroup::subgroup(std::span<const int> members, int id,
                                              const Options&) {
  if (members.empty()) return nullptr;
  if (id > kMaxId)
    throw CommError(detail::concat("[split] more than ", kMaxId,
                                   " groups were made of one; keep and reuse them"));
  const std::shared_ptr<MpiGroup> group(new MpiGroup());
  group->make_part(*this, members);
  group->data_ = data_;
  group->checks_ = checks_;
  group->tag_limit_ = tag_limit_;
  group->id_ = id;
  return group;
}

std::unique_ptr<Transfers> MpiGroup::make_transfers(Channel channel, const CallInfo& info,
                                                    int phase) {
  return std::make_unique<MpiTransfers>(channel == Channel::data ? data_ : checks_, members_,
                                        tag(info.sequence, phase));
}

MpiGroup::~MpiGroup() {
  // After a failure requests may be pending, and finalising MPI has freed everything.
  if (!failure_.empty()) {
    leak_until_exit(std::make_shared<std::vector<std::byte>>(std::move(scratch_)));
    busy_ = true;
  }
  if (parent_ != nullptr) {
    bool& busy = static_cast<MpiGroup&>(*parent_).busy_;
    busy = busy || busy_;
    return;
  }
  if (busy_ || mpi_is_over()) return;
  if (data_ != MPI_COMM_NULL) MPI_Comm_free(&data_);
  if (checks_ != MPI_COMM_NULL) MPI_Comm_free(&checks_);
}

int MpiGroup::notice_tag() const { return id_ * (tag_limit_ / (kMaxId + 1)); }

int MpiGroup::tag(std::uint64_t sequence, int phase) const {
  const auto tags = static_cast<std::uint64_t>(tag_limit_ / (kMaxId + 1));
  const std::uint64_t number = sequence * kMpiPhases + static_cast<std::uint64_t>(phase);
  return notice_tag() + 1 + static_cast<int>(number % ((tags - 1) / kMpiPhases * kMpiPhases));
}

void MpiGroup::look_for_notice() {
  check_mpi_thread("communicator");
  if (!failure_.empty() || size_ == 1) return;
  int found = 0;
  MPI_Status status;
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, notice_tag(), checks_, &found, &status), "MPI_Iprobe");
  if (found == 0) return;
  std::array<char, kNoticeBytes> text{};
  // Does not wait: a notice this short arrives with its envelope.
  check_mpi(MPI_Recv(text.data(), static_cast<int>(text.size()), MPI_CHAR, status.MPI_SOURCE,
                     notice_tag(), checks_, MPI_STATUS_IGNORE),
            "MPI_Recv of a failure notice");
  text.back() = '\0';
  failure_ = text.data();
}

void MpiGroup::send_notice() noexcept {
  if (size_ == 1 || mpi_is_over()) return;
  const auto notice = std::make_shared<std::vector<std::byte>>(kNoticeBytes);
  std::vector<std::byte>& memory = *notice;
  const std::size_t length = std::min(failure_.size(), kNoticeBytes - 1);
  std::transform(failure_.begin(), failure_.begin() + static_cast<std::ptrdiff_t>(length),
                 memory.begin(), [](char c) { return static_cast<std::byte>(c); });
  std::vector<MPI_Request> requests(static_cast<std::size_t>(size_), MPI_REQUEST_NULL);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto i = static_cast<std::size_t>(peer);
    MPI_Isend(memory.data(), static_cast<int>(memory.size()), MPI_BYTE, members_[i], notice_tag(),
              checks_, &requests[i]);
  }
  for (int polls = 0, done = 0; polls < kNoticePolls && done == 0; ++polls) {
    if (MPI_Testall(size_, requests.data(), &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS) break;
    std::this_thread::yield();
  }
  for (MPI_Request& request : requests)
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  leak_until_exit(notice);  // the request stays open if a peer never receives it
}

}  // namespace dkfac::comm
