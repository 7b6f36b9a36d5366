#include "comm/launch/device_note.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <unistd.h>
#include <utility>

#include "dkfac/core/error.h"

#include "comm/backends.h"
#include "comm/call_info.h"
#include "comm/transport/cuda/device_work.h"

namespace dkfac::comm {
namespace {

constexpr std::array kFields = {
    &DeviceNote::asked, &DeviceNote::device, &DeviceNote::machine,
    &DeviceNote::boot,  &DeviceNote::bus,    &DeviceNote::uuid,
    &DeviceNote::nccl,  &DeviceNote::takes,  &DeviceNote::problem,
};

std::string to_text(const DeviceNote& note) {
  std::string text;
  for (const auto field : kFields) {
    std::string line = note.*field;
    std::ranges::replace(line, '\n', ' ');
    text += line + '\n';
  }
  return text;
}

DeviceNote note_from(std::string_view text) {
  DeviceNote note;
  for (const auto field : kFields) {
    const std::size_t end = text.find('\n');
    note.*field = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end == std::string_view::npos ? end : end + 1));
  }
  return note;
}

std::string id_of_boot() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

void look_at(Device device, DeviceNote& note) {
  const std::vector<Device> there = available_devices();
  if (std::ranges::find(there, device) == there.end()) {
    note.problem =
        detail::concat("there is no ", device, "; CUDA devices that it can see: ", there.size() - 1,
                       " (CUDA_VISIBLE_DEVICES hides others)");
    return;
  }
  try {
    note.bus = cuda::bus_id(device);
    note.uuid = cuda::uuid(device);
  } catch (const std::exception& error) {
    note.problem = error.what();
  }
}

std::vector<int> ranks_where(const std::vector<DeviceNote>& by_rank,
                             const std::function<bool(const DeviceNote&)>& is) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < by_rank.size(); ++r)
    if (is(by_rank[r])) ranks.push_back(static_cast<int>(r));
  return ranks;
}

const DeviceNote& at(const std::vector<DeviceNote>& by_rank, int rank) {
  return by_rank[static_cast<std::size_t>(rank)];
}

bool is_cpu(const DeviceNote& note) { return note.device == "cpu"; }

}  // namespace

std::string machine_name() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return detail::concat(host.data(), " ", id_of_boot());
}

DeviceNote note_of(const Communicator& comm, Device device, std::string asked) {
  DeviceNote note;
  note.asked = std::move(asked);
  note.device = detail::concat(device);
  const char* chosen = std::getenv("NCCL_HOSTID");
  note.machine = chosen != nullptr ? chosen : machine_name();
  note.boot = id_of_boot();
  if (has_nccl()) note.nccl = std::to_string(nccl_version());
  if (comm.supports(device)) note.takes = "yes";
  if (device.is_cuda()) look_at(device, note);
  return note;
}

std::vector<DeviceNote> exchange_notes(Communicator& comm, const DeviceNote& mine) {
  std::vector<DeviceNote> notes;
  for (const std::string& text : all_gather_strings(comm, to_text(mine)))
    notes.push_back(note_from(text));
  return notes;
}

bool same_gpu(const DeviceNote& a, const DeviceNote& b) {
  if (a.bus.empty() || b.bus.empty()) return false;
  const bool one_for_nccl = a.machine == b.machine && a.bus == b.bus;
  if (one_for_nccl) return true;
  if (!a.uuid.empty() && !b.uuid.empty()) return a.uuid == b.uuid;
  return !a.boot.empty() && a.boot == b.boot && a.bus == b.bus;
}

std::vector<int> ranks_on_one_gpu(const std::vector<DeviceNote>& by_rank) {
  for (const DeviceNote& note : by_rank) {
    auto ranks =
        ranks_where(by_rank, [&](const DeviceNote& other) { return same_gpu(note, other); });
    if (ranks.size() > 1) return ranks;
  }
  return {};
}

bool all_on_one_gpu(const std::vector<DeviceNote>& by_rank) {
  return std::ranges::all_of(
      by_rank, [&](const DeviceNote& note) { return same_gpu(by_rank.front(), note); });
}

void require_devices(const std::vector<DeviceNote>& by_rank, int rank, std::string_view operation) {
  const DeviceNote& first = by_rank.front();
  const auto unlike =
      ranks_where(by_rank, [&](const DeviceNote& note) { return note.asked != first.asked; });
  DKFAC_CHECK(unlike.empty(), "[", operation, "] ", rank_list(unlike), " asked for '",
              at(by_rank, unlike.front()).asked, "' and rank 0 for '", first.asked,
              "'; give every rank the same options");
  const auto on_cpu = ranks_where(by_rank, is_cpu);
  const auto on_gpu = ranks_where(by_rank, std::not_fn(is_cpu));
  DKFAC_CHECK(on_cpu.empty() || on_gpu.empty(), "[", operation, "] the device of ",
              rank_list(on_cpu), " is the CPU and that of ", rank_list(on_gpu),
              " is a CUDA device; give every rank a CUDA device, or none");
  const auto lacking =
      ranks_where(by_rank, [](const DeviceNote& note) { return !note.problem.empty(); });
  if (lacking.empty()) return;
  if (!at(by_rank, rank).problem.empty())
    throw DeviceError(
        detail::concat("[", operation, "] rank ", rank, ": ", at(by_rank, rank).problem));
  throw CommError(detail::concat("[", operation, "] a device is missing on ", rank_list(lacking),
                                 "; rank ", lacking.front(), ": ",
                                 at(by_rank, lacking.front()).problem));
}

void require_nccl(const std::vector<DeviceNote>& by_rank, std::string_view operation) {
  DKFAC_CHECK(!is_cpu(by_rank.front()), "[", operation,
              "] the device is the CPU on every rank; NCCL needs a CUDA device");
  const auto without =
      ranks_where(by_rank, [](const DeviceNote& note) { return note.nccl.empty(); });
  if (!without.empty())
    throw CommError(detail::concat("[", operation, "] the build of ", rank_list(without),
                                   " has no NCCL; build with CUDA where nccl.h is found "
                                   "(NCCL_ROOT), or use make_host_staged"));
  const DeviceNote& first = by_rank.front();
  const auto unlike =
      ranks_where(by_rank, [&](const DeviceNote& note) { return note.nccl != first.nccl; });
  DKFAC_CHECK(unlike.empty(), "[", operation, "] NCCL is ", at(by_rank, unlike.front()).nccl,
              " on ", rank_list(unlike), " and ", first.nccl,
              " on rank 0; load the same library on every rank");
}

void require_own_gpus(const std::vector<DeviceNote>& by_rank, std::string_view operation) {
  const std::vector<int> sharers = ranks_on_one_gpu(by_rank);
  DKFAC_CHECK(sharers.empty(), "[", operation, "] ", rank_list(sharers), " have the same GPU (",
              at(by_rank, sharers.front()).machine, " ", at(by_rank, sharers.front()).bus,
              "), which NCCL refuses; give each rank one of its own, as "
              "device_of_rank(local rank), start no more ranks than there are GPUs, or use "
              "make_in_process for threads and make_host_staged for processes");
}

}  // namespace dkfac::comm
