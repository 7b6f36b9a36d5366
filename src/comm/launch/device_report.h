#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dkfac/comm/communicator.h"

namespace dkfac::comm {

/// What a rank tells the others of its device, before anything is made that takes all of them.
struct DeviceReport {
  std::string options;  ///< Options that have to be equal on all ranks.
  std::string device;   ///< "cuda:0"
  std::string machine;  ///< Host name and boot, or what NCCL_HOSTID says instead: as NCCL sees it.
  std::string boot;     ///< The same in all containers of a machine; "" where it is not known.
  std::string bus;      ///< Of the device within its machine; "" for the CPU.
  std::string uuid;     ///< Of the device in the world; "" where it is not known.
  std::string nccl;     ///< Its version; "" in a build without.
  std::string takes;    ///< "yes" when the communicator at hand takes the memory itself, else "".
  std::string problem;  ///< Why this rank has no such device; "" when it has.
};

/// Looks at the device; never throws for one that is not there.
[[nodiscard]] DeviceReport report_of(const Communicator& comm, Device device, std::string options);

/// By all ranks: everybody's reports, by rank.
[[nodiscard]] std::vector<DeviceReport> gather_device_reports(Communicator& comm,
                                                              const DeviceReport& mine);

/// Whether two ranks have one GPU, seen from wherever (containers of one machine have host names of
/// their own), or two that NCCL takes for one.
[[nodiscard]] bool same_gpu(const DeviceReport& a, const DeviceReport& b);
/// The first ranks that share a GPU; empty when every rank has its own.
[[nodiscard]] std::vector<int> ranks_on_one_gpu(const std::vector<DeviceReport>& by_rank);
[[nodiscard]] bool all_on_one_gpu(const std::vector<DeviceReport>& by_rank);

/// Throws, on every rank, unless all have asked for the same and have devices of one kind that are
/// there: the errors of on_device(). `operation` begins the messages.
void require_devices(const std::vector<DeviceReport>& by_rank, int rank,
                     std::string_view operation);
/// Throws on every rank unless all have the same NCCL and CUDA devices.
void require_nccl(const std::vector<DeviceReport>& by_rank, std::string_view operation);
/// Throws InvalidArgument naming ranks that share a GPU, and says what to do.
void require_own_gpus(const std::vector<DeviceReport>& by_rank, std::string_view operation);

/// The machine as this process sees it: host name and the id of the boot.
[[nodiscard]] std::string machine_name();

}  // namespace dkfac::comm
