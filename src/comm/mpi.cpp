#include "dkfac/comm/mpi.h"

#include <utility>

#include "dkfac/core/error.h"

#include "comm/host_communicator.h"
#include "comm/mpi_error.h"
#include "comm/mpi_group.h"
#include "comm/mpi_task.h"

namespace dkfac::comm {

namespace {

class MpiCommunicator final : public HostCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiGroup> group, Options options)
      : HostCommunicator(group->rank(), group->size(), options), group_(std::move(group)) {}

  [[nodiscard]] std::string_view backend() const override { return "mpi"; }
  [[nodiscard]] bool failed() const override { return group_->failed(); }

  /// Both sides must cut alike and agree on whether calls are compared at all.
  void compare_options() {
    HostCall call;
    call.kind = HostCall::Kind::barrier;
    call.info.op = detail::concat("make_mpi(piece_bytes ", options().piece_bytes, ", check ",
                                  options().check == Check::full ? "full" : "hash", ")");
    run(std::make_unique<MpiTask>(group_, options(), std::move(call)));
  }

 protected:
  std::unique_ptr<HostTask> make_task(HostCall call) override {
    return std::make_unique<MpiTask>(group_, options(), std::move(call));
  }
  void throw_if_failed() override { group_->throw_if_failed(); }

  std::shared_ptr<Communicator> do_split(int color, int key, CallInfo info) override {
    throw_if_failed();
    HostCall call;
    call.kind = HostCall::Kind::split;
    call.info = std::move(info);
    run(make_task(std::move(call)));
    // MPI has no split with a deadline; all ranks have just arrived, so it is short.
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(group_->data(), color < 0 ? MPI_UNDEFINED : color, key, &part),
              "MPI_Comm_split");
    if (part == MPI_COMM_NULL) return nullptr;
    auto group = MpiGroup::duplicate(part, options(), group_);
    check_mpi(MPI_Comm_free(&part), "MPI_Comm_free");
    return std::make_shared<MpiCommunicator>(std::move(group), options());
  }
  void do_abort(std::string_view reason) noexcept override {
    group_->fail(detail::concat("[abort] rank ", rank(), " aborted the group: ", reason));
  }

 private:
  std::shared_ptr<MpiGroup> group_;
};

}  // namespace

std::shared_ptr<Communicator> make_mpi(MPI_Comm comm, Options options) {
  options.validate();
  int initialized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  DKFAC_CHECK(initialized != 0,
              "[make_mpi] MPI is not initialised; call MPI_Init_thread first, or "
              "let comm::World do it");
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  DKFAC_CHECK(level >= MPI_THREAD_FUNNELED, "[make_mpi] MPI was initialised with thread level ",
              level, "; at least MPI_THREAD_FUNNELED (", MPI_THREAD_FUNNELED, ") is needed");
  auto communicator =
      std::make_shared<MpiCommunicator>(MpiGroup::duplicate(comm, options, nullptr), options);
  communicator->compare_options();
  return communicator;
}

}  // namespace dkfac::comm
