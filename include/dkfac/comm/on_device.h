#pragma once

#include <cstdint>
#include <memory>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/nccl.h"
#include "dkfac/core/device.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// What carries the memory of devices between ranks.
enum class DeviceComm : std::uint8_t {
  automatic,   ///< `host` itself where it can, else NCCL where it can, else host_staged.
  nccl,        ///< make_nccl(): one GPU for each rank.
  host_staged  ///< make_host_staged(): any GPUs, by way of the host.
};

/// A communicator of the ranks of `host` for memory of `device` as well: what a program calls with
/// World::comm(), or with that of a rank of run_ranks(). `host` must not be used directly from then
/// on; what is returned carries memory of the host, too. backend() tells what has been chosen.
///
/// Device::cpu() on every rank gives back `host`. With `automatic`, `host` is also given back where
/// it takes the memory itself: a single rank, threads (in_process) that share one GPU, and what
/// on_device() has made. Else it is NCCL when every rank has a GPU of its own and all builds have
/// NCCL, and host_staged otherwise. Over a hierarchical `host`, host_staged goes in two levels.
///
/// Collective over `host`. The ranks compare what they ask for before anything is made, so that
/// they fail together and at once, and `host` stays of use: InvalidArgument on every rank when
/// choices or `nccl` differ, when some ranks are on the CPU and others are not, and, with
/// DeviceComm::nccl, when ranks have the same GPU; DeviceError on a rank without such a device,
/// CommError that names it on the others; CommError when NCCL is asked for and a rank has none.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> on_device(
    std::shared_ptr<Communicator> host, Device device, DeviceComm choice = DeviceComm::automatic,
    NcclOptions nccl = {});

/// The device of a rank that is the `local_rank`-th (from 0) of its machine, as in
/// LaunchInfo::local_rank: they take the visible devices in turn, so that ranks share them where
/// there are more ranks than devices. Where a launcher shows each rank one device of its own, that
/// one. Throws DeviceError where there is none, InvalidArgument for local_rank < 0.
[[nodiscard]] DKFAC_API Device device_of_rank(int local_rank);

/// The same, for the place of this rank among the ranks of its machine in the order of ranks,
/// which needs no launcher that says so. Collective over `host`. Throws DeviceError on every rank
/// when one has no device, naming it.
[[nodiscard]] DKFAC_API Device device_of_rank(Communicator& host);

/// How many ranks of `host` have the GPU of this rank's `device`, itself included; each may pass
/// another device. What counts is the GPU, not its number: a launcher that shows every rank one GPU
/// of its own calls all of them cuda:0. 1 for Device::cpu(). Collective; errors as of on_device().
[[nodiscard]] DKFAC_API int ranks_on_gpu(Communicator& host, Device device);

}  // namespace dkfac::comm
