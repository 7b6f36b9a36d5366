#include "dkfac/comm/external.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/core/error.h"

#include "comm/call_info.h"
#include "comm/transport/host_communicator.h"
#include "comm/transport/reduce.h"

namespace dkfac::comm {

ExternalCollectives::Group ExternalCollectives::split(int /*color*/, int /*key*/) {
  throw CommError(
      "[split] these collectives cannot make groups of ranks; use a grad_worker_fraction of 0 (the "
      "owner alone) or 1, and no split_wide");
}
void ExternalCollectives::abort(std::string_view /*reason*/) noexcept {}

namespace {

using Bytes = std::vector<std::byte>;

std::size_t at(std::int64_t n) { return static_cast<std::size_t>(n); }

/// The collectives and their first failure, which is sticky; shared by the communicator and its
/// tasks.
class ExternalGroup {
 public:
  ExternalGroup(int own_rank, int ranks, std::shared_ptr<ExternalCollectives> collectives)
      : rank(own_rank), size(ranks), collectives_(std::move(collectives)) {}

  [[nodiscard]] bool failed() const { return !failure_.empty(); }
  void throw_if_failed() const {
    if (failed()) throw CommError(failure_);
  }
  /// Calls body(collectives).
  template <class Body>
  void run(Body body) {
    throw_if_failed();
    try {
      body(*collectives_);
    } catch (const std::exception& e) {
      fail(e.what());
      throw CommError(failure_);
    } catch (...) {
      fail("[external] the collectives threw an exception of unknown type");
      throw CommError(failure_);
    }
  }
  void fail(std::string reason) noexcept {
    if (failed()) return;
    failure_ = std::move(reason);
    collectives_->abort(failure_);
  }

  const int rank, size;

 private:
  std::shared_ptr<ExternalCollectives> collectives_;
  std::string failure_;
};

/// Check::full: throws unless every rank makes the same call.
void compare_calls(const ExternalGroup& group, ExternalCollectives& collectives,
                   const CallInfo& info) {
  constexpr std::size_t kHash = sizeof(std::uint64_t), kText = 248;
  const CallDigest mine = digest_of(info);
  Bytes own(kHash + kText), all(own.size() * at(group.size));
  std::memcpy(own.data(), &mine.hash, kHash);
  mine.text.copy(reinterpret_cast<char*>(own.data() + kHash), kText - 1);
  collectives.all_gather(own, all);
  std::vector<CallDigest> digests(at(group.size));
  for (std::size_t r = 0; r < digests.size(); ++r) {
    const std::byte* theirs = all.data() + r * own.size();
    std::memcpy(&digests[r].hash, theirs, kHash);
    digests[r].text = reinterpret_cast<const char*>(theirs + kHash);
  }
  if (const std::string text = disagreement(digests); !text.empty()) throw CommError(text);
}

/// One collective, complete after the first advance().
class ExternalTask final : public HostTask {
 public:
  ExternalTask(std::shared_ptr<ExternalGroup> group, HostCall call, bool compare)
      : group_(std::move(group)), call_(std::move(call)), compare_(compare) {}

  bool advance() override {
    group_->run([this](ExternalCollectives& collectives) {
      if (compare_) compare_calls(*group_, collectives, call_.info);
      move(collectives);
    });
    return true;
  }

 private:
  void move(ExternalCollectives& collectives) const {
    switch (call_.kind) {
      case HostCall::Kind::all_reduce:
        return reduce(collectives, 0, call_.count());
      case HostCall::Kind::reduce_scatter_v:
        return reduce(collectives, call_.offset(group_->rank), call_.segment(group_->rank));
      case HostCall::Kind::all_gather_v:
        return all_gather(collectives);
      case HostCall::Kind::broadcast:
        if (call_.count() > 0) collectives.broadcast(segment(0, call_.count()), call_.root);
        return;
      case HostCall::Kind::exchange:
        return exchange(collectives);
      case HostCall::Kind::barrier:
      case HostCall::Kind::split:
        return collectives.barrier();
    }
  }

  [[nodiscard]] std::span<std::byte> segment(std::int64_t first, std::int64_t count) const {
    return {call_.out + at(first) * call_.element(), at(count) * call_.element()};
  }

  /// Leaves elements [first, first + count) of the sum in call_.out.
  void reduce(ExternalCollectives& collectives, std::int64_t first, std::int64_t count) const {
    if (call_.count() == 0) return;
    const std::size_t bytes = at(call_.count()) * call_.element();
    if (call_.dtype == DType::f64 || call_.dtype == DType::f32) {
      // The caller of a reduce-scatter passes x mutable and leaves its contents unspecified.
      auto* x = const_cast<std::byte*>(call_.in);
      collectives.all_reduce({x, call_.dtype, Shape{call_.count()}}, call_.op);
      if (const std::byte* sum = x + at(first) * call_.element(); sum != call_.out && count > 0)
        std::memmove(call_.out, sum, at(count) * call_.element());
      return;
    }
    Bytes all(bytes * at(group_->size));
    collectives.all_gather({call_.in, bytes}, all);
    std::vector<const std::byte*> inputs;
    for (int r = 0; r < group_->size; ++r)
      inputs.push_back(all.data() + at(r) * bytes + at(first) * call_.element());
    if (count > 0) reduce_in_order(call_.op, call_.dtype, inputs, count, call_.out);
  }

  void all_gather(ExternalCollectives& collectives) const {
    const int size = group_->size;
    std::int64_t longest = 0;
    for (int r = 0; r < size; ++r) longest = std::max(longest, call_.segment(r));
    if (longest == 0) return;
    const std::span<std::byte> mine =
        segment(call_.offset(group_->rank), call_.segment(group_->rank));
    if (mine.data() != call_.in && !mine.empty()) std::memmove(mine.data(), call_.in, mine.size());
    if (longest * size > 2 * call_.count()) {  // Padding would more than double the bytes.
      for (int r = 0; r < size; ++r)
        if (call_.segment(r) > 0)
          collectives.broadcast(segment(call_.offset(r), call_.segment(r)), r);
      return;
    }
    const std::size_t block = at(longest) * call_.element();
    Bytes in(block), all(block * at(size));
    if (!mine.empty()) std::memcpy(in.data(), mine.data(), mine.size());
    collectives.all_gather(in, all);
    for (int r = 0; r < size; ++r)
      if (const auto to = segment(call_.offset(r), call_.segment(r)); !to.empty())
        std::memcpy(to.data(), all.data() + at(r) * block, to.size());
  }

  /// One broadcast for each message: there is no call between two ranks.
  void exchange(ExternalCollectives& collectives) const {
    std::int64_t sent = 0, received = 0;
    Bytes other;
    for (const Route& route : call_.routes) {
      const std::size_t bytes = at(route.count) * call_.element();
      std::byte* memory = nullptr;
      if (route.from == group_->rank) {  // The root's memory is only read.
        memory = const_cast<std::byte*>(call_.in) + at(sent) * call_.element();
        sent += route.count;
      } else if (route.to == group_->rank) {
        memory = call_.out + at(received) * call_.element();
        received += route.count;
      } else {
        if (other.size() < bytes) other.resize(bytes);
        memory = other.data();
      }
      if (bytes > 0) collectives.broadcast({memory, bytes}, route.from);
    }
  }

  std::shared_ptr<ExternalGroup> group_;
  HostCall call_;
  bool compare_;
};

class ExternalCommunicator final : public HostCommunicator {
 public:
  ExternalCommunicator(std::shared_ptr<ExternalGroup> group, Options options)
      : HostCommunicator(group->rank, group->size, options), group_(std::move(group)) {}
  [[nodiscard]] std::string_view backend() const override { return "external"; }
  [[nodiscard]] bool failed() const override { return group_->failed(); }
  [[nodiscard]] bool overlaps() const override { return false; }

 protected:
  std::unique_ptr<HostTask> make_task(HostCall call) override {
    return std::make_unique<ExternalTask>(group_, std::move(call), options().check == Check::full);
  }
  void throw_if_failed() override { group_->throw_if_failed(); }
  std::shared_ptr<Communicator> do_split(int color, int key, CallInfo info) override {
    do_barrier(std::move(info));
    ExternalCollectives::Group part;
    group_->run([&](ExternalCollectives& collectives) { part = collectives.split(color, key); });
    if (color < 0) return nullptr;
    return make_external(part.rank, part.size, std::move(part.collectives), options());
  }
  void do_abort(std::string_view reason) noexcept override {
    group_->fail(detail::concat("[abort] rank ", rank(), " aborted the group: ", reason));
  }

 private:
  std::shared_ptr<ExternalGroup> group_;
};

}  // namespace

std::shared_ptr<Communicator> make_external(int rank, int size,
                                            std::shared_ptr<ExternalCollectives> collectives,
                                            Options options) {
  DKFAC_CHECK(collectives != nullptr, "[make_external] the collectives are null");
  DKFAC_CHECK(size >= 1 && rank >= 0 && rank < size, "[make_external] rank is ", rank, " of ", size,
              "; ranks are 0 to size - 1");
  return std::make_shared<ExternalCommunicator>(
      std::make_shared<ExternalGroup>(rank, size, std::move(collectives)), options);
}

}  // namespace dkfac::comm
