#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nccl.h>

#include "emulated/device.h"

namespace emulated {

/// One rank's part in a collective or message.
struct NcclPart {
  enum class Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, message };
  Kind kind = Kind::message;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  CUstream_st* stream = nullptr;
  Ticket ticket = 0;
  std::shared_ptr<bool> aborted;  ///< Whether the rank has aborted.
};

/// A collective, or a message from one rank to another, with the parts of its ranks.
struct NcclMeeting {
  std::size_t expected = 0;
  std::map<int, NcclPart> parts;  ///< By rank; of a message the sender is 0, the receiver 1.
  bool done = false;
};
/// Moves the data of a collective with all parts. Throws std::runtime_error when they disagree.
void execute(NcclMeeting& meeting);

struct NcclFabric;

/// A split, with the calls of its ranks.
struct NcclSplit {
  std::map<int, std::pair<int, int>> wishes;            ///< By rank: color and key.
  std::map<int, std::shared_ptr<NcclFabric>> by_color;  ///< Created when all ranks have called.
};

/// State shared by the ranks of one communicator.
struct NcclFabric {
  int size = 0;
  std::map<int, bool> joined;
  std::map<std::uint64_t, std::shared_ptr<NcclMeeting>> collectives;
  std::map<std::tuple<int, int, std::uint64_t>, std::shared_ptr<NcclMeeting>> messages;
  std::map<std::uint64_t, NcclSplit> splits;
};

}  // namespace emulated

struct ncclComm {
  std::shared_ptr<emulated::NcclFabric> fabric;
  int rank = 0;
  bool blocking = true;
  int polls = 0;  ///< Number of polls until a call completes.
  std::uint64_t collectives = 0;
  std::map<int, std::uint64_t> sent, received;
  std::vector<std::shared_ptr<emulated::NcclMeeting>> meetings;  ///< Collectives that may be in
                                                                 ///< flight.
  std::uint64_t splits = 0;
  ncclComm** child = nullptr;  ///< Destination of the communicator of the current split.
  std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
  std::shared_ptr<bool> broken = std::make_shared<bool>(false);
  bool fails = false;  ///< Whether its first collective fails.
  ncclResult_t error = ncclSuccess;
};
