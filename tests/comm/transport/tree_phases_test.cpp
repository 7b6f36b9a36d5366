// How many messages a rank sends and receives in a collective over peers.

#include "comm/transport/tree_phases.h"

#include <memory>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "comm/transport/peer_group.h"
#include "comm/transport/sum_order.h"

namespace dkfac::comm::testing {
namespace phases {

struct Messages {
  int sent = 0, received = 0;
  bool operator==(const Messages&) const = default;
};

/// Counts messages, each of which arrives at once.
class CountedTransfers final : public Transfers {
 public:
  explicit CountedTransfers(Messages& messages) : messages_(messages) {}
  bool advance() override {
    for (Transfer& transfer : transfers_) {
      if (transfer.complete()) continue;
      ++(transfer.direction == Transfer::Direction::send ? messages_.sent : messages_.received);
      transfer.done = transfer.pieces();
    }
    return true;
  }

 private:
  Messages& messages_;
};

class CountedGroup final : public PeerGroup {
 public:
  CountedGroup(int rank, int size) { make_whole(rank, size); }
  [[nodiscard]] std::unique_ptr<Transfers> make_transfers(Channel, const CallInfo&, int) override {
    return std::make_unique<CountedTransfers>(messages);
  }
  [[nodiscard]] std::shared_ptr<PeerGroup> subgroup(std::span<const int>, int,
                                                    const Options&) override {
    return nullptr;
  }

  Messages messages;

 protected:
  void look_for_notice() override {}
  void send_notice() noexcept override {}
};

/// Messages of a rank in one phase, of segments of one element.
Messages of(bool gather, int rank, int size) {
  const auto group = std::make_shared<CountedGroup>(rank, size);
  std::vector<double> x(static_cast<std::size_t>(size));
  HostCall call;
  call.dtype = DType::f64;
  call.offsets = even_offsets(size, size);
  call.out = reinterpret_cast<std::byte*>(x.data());
  call.in = call.out;
  const PhaseArguments arguments{*group, call, 1 << 20, 1};
  std::byte* own = call.out + sizeof(double) * static_cast<std::size_t>(rank);
  const Phase phase =
      gather ? make_gather_phase(arguments, own) : make_reduce_phase(arguments, own);
  EXPECT_TRUE(phase->advance());
  return group->messages;
}

TEST(Phases, SendToEachRankUpToEightAndAlongTheTreeBeyond) {
  for (const bool gather : {false, true}) {
    for (const int rank : {0, 3, 7})
      EXPECT_EQ(of(gather, rank, kMostInRankOrder), (Messages{7, 7}));
    for (const int size : {16, 64, 512})
      for (const int rank : {0, 5, size - 1}) {
        const int steps = static_cast<int>(tree_steps(size, rank).size());
        EXPECT_EQ(of(gather, rank, size), (Messages{steps, steps}))
            << (gather ? "gather" : "reduce") << " of rank " << rank << " of " << size;
      }
  }
}

TEST(Phases, BroadcastAndCompareAlongTheTreeTooUnlessAllAreComparedWithAll) {
  for (const auto& [size, check, messages] :
       {std::tuple(8, Check::hash, 7), std::tuple(16, Check::hash, 4),
        std::tuple(512, Check::hash, 9), std::tuple(512, Check::full, 511)})
    for (const int rank : {0, 5, size - 1}) {
      const auto group = std::make_shared<CountedGroup>(rank, size);
      const Phase phase = make_header_phase(*group, {}, check, 0);
      EXPECT_THROW((void)phase->advance(), CommError) << "the counted group brings no headers";
      EXPECT_EQ(group->messages, (Messages{messages, messages}))
          << "rank " << rank << " of " << size;
    }
  int sent = 0;
  for (int rank = 0; rank < 512; ++rank) {
    const auto group = std::make_shared<CountedGroup>(rank, 512);
    std::vector<double> x(3);
    HostCall call;
    call.dtype = DType::f64;
    call.offsets = {0, 3};
    call.out = reinterpret_cast<std::byte*>(x.data());
    call.root = 77;
    EXPECT_TRUE(make_broadcast_phase({*group, call, 1 << 20, 1})->advance());
    EXPECT_EQ(group->messages.received, rank == 77 ? 0 : 1);
    EXPECT_LE(group->messages.sent, 9);
    sent += group->messages.sent;
  }
  EXPECT_EQ(sent, 511);
}

}  // namespace phases
}  // namespace dkfac::comm::testing
