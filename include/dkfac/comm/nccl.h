#pragma once

#include <memory>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

struct DKFAC_API NcclOptions {
  /// Sums of f64, f32 and i32 in the order of the ranks, hence with the same bits on every run and
  /// as over every other backend: the owner of a segment receives all parts of it and adds them.
  /// NCCL's own sums may take another order on another machine or network.
  bool owner_sums = false;
  /// Lets several ranks try one GPU, which NCCL refuses unless it has been told otherwise.
  bool shared_devices = false;
};

/// Over NCCL, one rank per GPU: device memory of `device` on any CUDA stream of it. What is on the
/// host goes over `bootstrap`, a communicator of the same ranks (TCP needs no MPI), which also
/// carries NCCL's id, comparisons (Check::full), barriers and notices of failure, and gives rank,
/// size and options; it must not be used directly while this one is.
///
/// The device is never waited for but in the destructor and in split(), which let finish what is
/// under way. Other
/// ranks are waited for on the host, up to timeout_s, by making it, split(), barrier(), with
/// Check::full by each call, and, since NCCL connects when it has to, possibly by the first
/// collective of each kind and the first exchange with each peer.
///
/// bf16 and f16 are always summed by owners, in f32 and rounded once, as maxima are taken, so that
/// a NaN stays; at most 128 ranks can do so.
///
/// A device that waits for a lost peer waits for ever. So progress(), every call, and every wait of
/// the thread that called last look for errors of NCCL, for failures over `bootstrap`, and for a
/// collective that is not done timeout_s after it was first waited for (the work before it on its
/// stream counts); then NCCL is aborted on every rank, and CommError is thrown. What was under way
/// leaves its buffers unspecified.
///
/// Collective over `bootstrap`. The ranks compare what they have before anything is made, so that
/// they fail together and at once, and `bootstrap` stays of use. Throws InvalidArgument on every
/// rank when one of them has no CUDA device to give or other options, when their versions of NCCL
/// differ, and when two of them have the same GPU (told apart by its id in the world, and as NCCL
/// does: by host name, boot and bus); CommError when a build has no NCCL, when another rank has no
/// such device (DeviceError there), and when the ranks do not all come within timeout_s.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_nccl(
    std::shared_ptr<Communicator> bootstrap, Device device, NcclOptions options = {});

}  // namespace dkfac::comm
