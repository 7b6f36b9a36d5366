#pragma once

#include <string_view>

// c10d is a part of LibTorch that builds may leave out; its CMake package tells by this flag.
#define DKFAC_TEXT_OF(flag) #flag
#define DKFAC_VALUE_OF(flag) DKFAC_TEXT_OF(flag)
static_assert(std::string_view(DKFAC_VALUE_OF(USE_DISTRIBUTED)) != "USE_DISTRIBUTED",
              "dkfac/torch/process_group.hpp: this LibTorch was built without c10d; pass ranks of "
              "dkfac_comm_tcp() as Options::comm, or, where it has c10d, the flags of its CMake "
              "package, of which USE_DISTRIBUTED is one");
#undef DKFAC_VALUE_OF
#undef DKFAC_TEXT_OF

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/torch.h>

#include "dkfac/c/dkfac.h"
#include "dkfac/torch/layers.hpp"
#include "dkfac/torch/ranks.hpp"

/// Ranks of a c10d process group, for dkfac::libtorch::Options::comm:
///
///   options.comm = dkfac::libtorch::comm_of(group);  // e.g. of c10d::ProcessGroupGloo
namespace dkfac::libtorch {
namespace detail {

/// Callbacks of the C interface, whose `user` is a new intrusive_ptr of the group.
template <class Group>
struct Collectives {
  using Pointer = c10::intrusive_ptr<Group>;

  static dkfac_comm_callbacks of(Pointer group) {
    dkfac_comm_callbacks callbacks{};
    callbacks.struct_size = sizeof callbacks;
    callbacks.user = new Pointer(std::move(group));
    callbacks.all_reduce = &all_reduce;
    callbacks.all_gather = &all_gather;
    callbacks.broadcast = &broadcast;
    callbacks.barrier = &barrier;
    callbacks.release = &release;
    return callbacks;
  }
  static void release(void* user) { delete static_cast<Pointer*>(user); }

 private:
  /// Runs call(group), which returns the work to wait for.
  template <class Call>
  static int wait_for(void* user, Call call) {
    const auto failed = [](const char* reason) {
      const std::string text =
          std::string(
              "another rank has failed, has ended, or is late, or the group has no "
              "collectives on host memory: ") +
          reason;
      dkfac_set_callback_error(text.c_str());
      return 1;
    };
    try {
      return call(**static_cast<Pointer*>(user))->wait() ? 0 : failed("the work has failed");
    } catch (const c10::Error& error) {
      return failed(error.what_without_backtrace());
    } catch (const std::exception& error) {
      return failed(error.what());
    }
  }
  /// data[count] of the library as a tensor; valid until the callback returns.
  static at::Tensor view(const void* data, std::int64_t count, at::ScalarType type = at::kByte) {
    return at::from_blob(const_cast<void*>(data), {count}, type);
  }

  static int all_reduce(void* user, void* data, std::int64_t count, std::int32_t dtype,
                        std::int32_t maximum) {
    if (count == 0) return 0;
    std::vector<at::Tensor> tensors{
        view(data, count, dtype == DKFAC_F64 ? at::kDouble : at::kFloat)};
    if (maximum == 0) return wait_for(user, [&](Group& group) { return group.allreduce(tensors); });
    // gloo's maximum may lose a NaN, and on some of the ranks alone.
    std::vector<std::vector<at::Tensor>> parts{{}};
    for (int rank = 0; rank < (*static_cast<Pointer*>(user))->getSize(); ++rank)
      parts[0].push_back(at::empty_like(tensors[0]));
    const int status =
        wait_for(user, [&](Group& group) { return group.allgather(parts, tensors); });
    if (status == 0) tensors[0].copy_(at::stack(parts[0]).amax(0));
    return status;
  }
  static int all_gather(void* user, const void* in, void* out, std::int64_t bytes) {
    if (bytes == 0) return 0;
    std::vector<at::Tensor> mine{view(in, bytes)};
    std::vector<std::vector<at::Tensor>> parts{
        view(out, bytes * (*static_cast<Pointer*>(user))->getSize()).split(bytes)};
    return wait_for(user, [&](Group& group) { return group.allgather(parts, mine); });
  }
  static int broadcast(void* user, void* data, std::int64_t bytes, std::int32_t root) {
    if (bytes == 0) return 0;
    std::vector<at::Tensor> tensors{view(data, bytes)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return wait_for(user, [&](Group& group) { return group.broadcast(tensors, options); });
  }
  static int barrier(void* user) {
    return wait_for(user, [](Group& group) { return group.barrier(); });
  }
};

}  // namespace detail

/// The ranks of a c10d::ProcessGroup, or of a c10d::Backend such as ProcessGroupGloo of torch 2, by
/// its collectives on host memory, which NCCL does not have. Kfac calls them in its constructor, in
/// step() and in reset(), on the calling thread: the caller has none pending then. The time limit
/// is that of the group. Throws Error.
template <class Group>
Comm comm_of(c10::intrusive_ptr<Group> group) {
  if (!group.defined()) throw Error("[comm_of] the group is null; make one, e.g. of gloo");
  const int rank = group->getRank(), size = group->getSize();
  const dkfac_comm_callbacks callbacks = detail::Collectives<Group>::of(std::move(group));
  try {
    return detail::made_comm([&](dkfac_comm** comm) {
      return dkfac_comm_from_callbacks(rank, size, &callbacks, nullptr, comm);
    });
  } catch (...) {  // The library has not taken the group.
    detail::Collectives<Group>::release(callbacks.user);
    throw;
  }
}

}  // namespace dkfac::libtorch
