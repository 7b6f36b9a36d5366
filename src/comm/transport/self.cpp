#include <cstring>
#include <utility>

#include "dkfac/core/error.h"

#include "comm/transport/cuda/device_work.h"
#include "comm/transport/host_communicator.h"

namespace dkfac::comm {

namespace {

std::size_t bytes_to_copy(const HostCall& call) {
  return call.in == call.out ? 0 : static_cast<std::size_t>(call.count()) * call.element();
}

/// Task of a collective of one rank. It is queued because its input may be the output of an earlier
/// task.
class SelfTask : public HostTask {
 public:
  explicit SelfTask(HostCall call) : call_(std::move(call)) {}
  bool advance() override {
    if (const std::size_t bytes = bytes_to_copy(call_); bytes > 0)
      std::memcpy(call_.out, call_.in, bytes);
    return true;
  }

 private:
  HostCall call_;
};

class SelfCommunicator final : public HostCommunicator {
 public:
  explicit SelfCommunicator(Options options) : HostCommunicator(0, 1, options) {}
  [[nodiscard]] std::string_view backend() const override { return "self"; }
  [[nodiscard]] bool failed() const override { return !failure_.empty(); }
  [[nodiscard]] bool supports(Device device) const override {
    return !device.is_cuda() || cuda::is_built();
  }

 protected:
  std::unique_ptr<HostTask> make_task(HostCall call) override {
    return std::make_unique<SelfTask>(std::move(call));
  }
  void run_on_device(HostCall call) override {
    cuda::copy(call.stream, call.in, call.out, bytes_to_copy(call));
  }
  void throw_if_failed() override {
    if (failed()) throw CommError(failure_);
  }
  std::shared_ptr<Communicator> do_split(int color, int /*key*/, CallInfo info) override {
    do_barrier(std::move(info));
    if (color < 0) return nullptr;
    return make_self(options());
  }
  void do_abort(std::string_view reason) noexcept override {
    if (!failed()) failure_ = detail::concat("[abort] rank 0 aborted the group: ", reason);
  }

 private:
  std::string failure_;
};

}  // namespace

std::shared_ptr<Communicator> make_self(Options options) {
  return std::make_shared<SelfCommunicator>(options);
}

}  // namespace dkfac::comm
