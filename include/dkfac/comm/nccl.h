#pragma once

#include <memory>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Options of make_nccl().
struct DKFAC_API NcclOptions {
  /// Sums f64, f32 and i32 in the order of Communicator, bitwise identically on every run and over
  /// every other backend: the owner of a segment receives and adds the contributions of all ranks.
  /// The order of NCCL's own reductions depends on machine and network.
  bool owner_sums = false;
  /// Allows several ranks on one GPU. NCCL itself refuses this unless it is configured to allow it.
  bool shared_devices = false;
};

/// Makes a communicator over NCCL, one rank per GPU, for memory of `device` on any of its CUDA
/// streams. `bootstrap` is a communicator of the same ranks (TCP needs no MPI) and carries host
/// memory, NCCL's id, comparisons (Check::full), barriers and failure notices. Rank, size and
/// options are those of `bootstrap`. It must not be used directly while the result is in use.
///
/// Only the destructor and split() wait for the device, until pending work is done. The host waits
/// for other ranks, up to timeout_s, in this function, split(), barrier() and, with Check::full, in
/// each call. Since NCCL connects lazily, it may also wait in the first collective of each kind and
/// the first exchange with each peer.
///
/// bf16 and f16 are always summed at owners, in f32 and rounded once. Maxima are also taken at
/// owners, so that NaN propagates. Both support at most 128 ranks.
///
/// NCCL work that waits for a lost peer would never end. Therefore NCCL errors, failures over
/// `bootstrap` and time limits are checked in progress(), in every call, and in every wait of the
/// thread that made the last call. The time limit of a collective is timeout_s from its first wait,
/// preceding work of its stream included. On a failure NCCL is aborted on every rank, CommError is
/// thrown, and buffers of pending collectives are unspecified.
///
/// Collective over `bootstrap`. The ranks compare their configurations before anything is created,
/// so they fail together and immediately, and `bootstrap` stays usable. Throws InvalidArgument on
/// every rank when a rank passes no CUDA device or different options, when NCCL versions differ,
/// and when two ranks have the same GPU. GPUs are identified by UUID and, as NCCL does, by host
/// name, boot id and bus id. Throws CommError when a build has no NCCL, when another rank lacks its
/// device (DeviceError on that rank), and when ranks do not arrive within timeout_s.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_nccl(
    std::shared_ptr<Communicator> bootstrap, Device device, NcclOptions options = {});

}  // namespace dkfac::comm
