#include "comm/transport/collective_phases.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "dkfac/core/error.h"

#include "comm/call_info.h"
#include "comm/routed_messages.h"
#include "comm/transport/leaked.h"
#include "comm/transport/phase_transfers.h"
#include "comm/transport/reduce.h"
#include "comm/transport/sum_order.h"
#include "comm/transport/transfers.h"
#include "comm/transport/tree_phases.h"

namespace dkfac::comm {

namespace {

/// Returns the other ranks, starting with the successor so that not all ranks begin with rank 0.
std::vector<int> peers_of(const PeerGroup& group) {
  std::vector<int> peers;
  for (int i = 1; i < group.size(); ++i) peers.push_back((group.rank() + i) % group.size());
  return peers;
}

std::unique_ptr<Transfers> transfers_of(const PhaseArguments& arguments) {
  return arguments.group.make_transfers(arguments.channel, arguments.call.info, arguments.phase);
}

class ReducePhase final : public CollectivePhase {
 public:
  ReducePhase(const PhaseArguments& arguments, std::byte* out)
      : rank_(arguments.group.rank()),
        call_(arguments.call),
        piece_(reduce_piece(arguments.piece_bytes, arguments.group.size())),
        out_(out),
        own_bytes_(byte_count(call_, call_.segment(rank_))),
        receive_transfer_(static_cast<std::size_t>(arguments.group.size())),
        transfers_(transfers_of(arguments)) {
    const auto& [group, call, piece_bytes, phase, channel] = arguments;
    const std::int64_t ring = std::min(piece_, whole_elements(own_bytes_ + 7)) * kPiecesInFlight;
    std::byte* scratch =
        group.scratch(static_cast<std::size_t>(ring) * static_cast<std::size_t>(group.size() - 1));
    for (const int peer : peers_of(group)) {
      Transfer transfer = receive_transfer(peer, scratch, own_bytes_, piece_);
      transfer.kind = Transfer::Memory::ring;
      transfer.allowed = kPiecesInFlight;
      transfer.announced = call.kind == HostCall::Kind::all_reduce;
      receive_transfer_[static_cast<std::size_t>(peer)] = transfers_->add(transfer);
      scratch += ring;
    }
    for (const int peer : peers_of(group)) {
      Transfer transfer = send_transfer(peer, call.in + byte_count(call, call.offset(peer)),
                                        byte_count(call, call.segment(peer)), piece_);
      transfer.announced = call.kind == HostCall::Kind::all_reduce;
      transfers_->add(transfer);
    }
  }

  bool advance() override {
    transfers_->advance();
    if (reduced_ < own_pieces() && ready()) reduce_piece_of_all();
    return reduced_ == own_pieces() && transfers_->complete();
  }
  [[nodiscard]] std::vector<int> missing() const override { return transfers_->missing(); }

 private:
  /// Returns the piece size of a reduce, the same on every rank. Scratch holds kPiecesInFlight
  /// pieces of every peer; in large groups pieces get shorter, down to 4 KB, so that scratch stays
  /// near 64 pieces.
  static std::int64_t reduce_piece(std::int64_t piece_bytes, int size) {
    const std::int64_t whole = piece_of(piece_bytes);
    const std::int64_t piece = 64 * whole / (kPiecesInFlight * std::max(size - 1, 1));
    return piece_of(std::min(whole, std::max<std::int64_t>(4096, piece)));
  }

  [[nodiscard]] std::int64_t own_pieces() const { return (own_bytes_ + piece_ - 1) / piece_; }

  bool ready() {
    for (std::size_t peer = 0; peer < receive_transfer_.size(); ++peer) {
      if (peer == static_cast<std::size_t>(rank_)) continue;
      if ((*transfers_)[receive_transfer_[peer]].done <= reduced_) return false;
    }
    return true;
  }

  void reduce_piece_of_all() {
    const std::int64_t begin = reduced_ * piece_;
    std::vector<const std::byte*> inputs;
    for (std::size_t r = 0; r < receive_transfer_.size(); ++r) {
      inputs.push_back(r == static_cast<std::size_t>(rank_)
                           ? call_.in + byte_count(call_, call_.offset(rank_)) + begin
                           : (*transfers_)[receive_transfer_[r]].memory_of(reduced_));
    }
    const std::int64_t bytes = std::min(piece_, own_bytes_ - begin);
    reduce_in_order(call_.op, call_.dtype, inputs,
                    bytes / static_cast<std::int64_t>(call_.element()), out_ + begin);
    ++reduced_;
    for (std::size_t r = 0; r < receive_transfer_.size(); ++r) {
      if (r != static_cast<std::size_t>(rank_))
        (*transfers_)[receive_transfer_[r]].allowed = reduced_ + kPiecesInFlight;
    }
  }

  int rank_;
  const HostCall& call_;
  std::int64_t piece_;
  std::byte* out_;
  std::int64_t own_bytes_;
  std::int64_t reduced_ = 0;  ///< Reduced pieces of the own segment.
  std::vector<std::size_t> receive_transfer_;
  std::unique_ptr<Transfers> transfers_;
};

/// Phase of transfers without work between their pieces.
class PlainPhase : public CollectivePhase {
 public:
  explicit PlainPhase(std::unique_ptr<Transfers> transfers) : transfers_(std::move(transfers)) {}
  bool advance() override { return transfers_->advance(); }
  [[nodiscard]] std::vector<int> missing() const override { return transfers_->missing(); }

 protected:
  std::unique_ptr<Transfers> transfers_;
};

class GatherPhase final : public PlainPhase {
 public:
  GatherPhase(const PhaseArguments& arguments, const std::byte* in)
      : PlainPhase(transfers_of(arguments)) {
    const auto& [group, call, piece_bytes, phase, channel] = arguments;
    const std::int64_t piece = piece_of(piece_bytes);
    const std::int64_t own = byte_count(call, call.segment(group.rank()));
    std::byte* place = call.out + byte_count(call, call.offset(group.rank()));
    if (own > 0 && place != in) std::memcpy(place, in, static_cast<std::size_t>(own));
    for (const int peer : peers_of(group)) {
      transfers_->add(receive_transfer(peer, call.out + byte_count(call, call.offset(peer)),
                                       byte_count(call, call.segment(peer)), piece));
    }
    for (const int peer : peers_of(group)) transfers_->add(send_transfer(peer, in, own, piece));
  }
};

class BroadcastPhase final : public PlainPhase {
 public:
  explicit BroadcastPhase(const PhaseArguments& arguments) : PlainPhase(transfers_of(arguments)) {
    const auto& [group, call, piece_bytes, phase, channel] = arguments;
    const int size = group.size();
    const int place = (group.rank() - call.root + size) % size;  // the root is at 0
    const auto rank_at = [&](int p) { return (p + arguments.call.root) % size; };
    const std::int64_t bytes = byte_count(call, call.count());
    const std::int64_t piece = piece_of(piece_bytes);
    int reach = 1;  // the tree below `place` covers [place, place + reach)
    while (reach < size && (place & reach) == 0) reach *= 2;
    passes_on_ = place != 0;
    if (passes_on_)
      transfers_->add(receive_transfer(rank_at(place - reach), call.out, bytes, piece));
    for (int step = reach / 2; step > 0; step /= 2) {  // the deepest subtree first
      if (place + step >= size) continue;
      Transfer transfer = send_transfer(rank_at(place + step), call.out, bytes, piece);
      if (passes_on_) transfer.allowed = 0;
      transfers_->add(transfer);
    }
  }

  bool advance() override {
    const bool complete = transfers_->advance();
    if (complete || !passes_on_) return complete;
    for (std::size_t i = 1; i < transfers_->size(); ++i)
      (*transfers_)[i].allowed = (*transfers_)[0].done;
    return false;
  }

 private:
  bool passes_on_ = false;
};

class ExchangePhase final : public PlainPhase {
 public:
  explicit ExchangePhase(const PhaseArguments& arguments) : PlainPhase(transfers_of(arguments)) {
    const auto& [group, call, piece_bytes, phase, channel] = arguments;
    const std::int64_t piece = piece_of(piece_bytes);
    for (const RoutedMessage& m : messages_of(call.routes, group.rank())) {
      const std::int64_t bytes = byte_count(call, m.route.count);
      transfers_->add(
          m.route.to == group.rank()
              ? receive_transfer(m.route.from, call.out + byte_count(call, m.received_at), bytes,
                                 piece)
              : send_transfer(m.route.to, call.in + byte_count(call, m.sent_at), bytes, piece));
    }
  }
};

/// Wire format of a CallDigest.
struct Header {
  std::uint64_t hash = 0;
  std::array<char, 248> text{};
};

/// A gather of memory of its own, on another channel than data.
class HeaderPhase final : public CollectivePhase {
 public:
  HeaderPhase(PeerGroup& group, const CallInfo& info, Check check, int phase)
      : group_(group),
        headers_(std::make_shared<std::vector<Header>>(static_cast<std::size_t>(group.size()))) {
    const CallDigest digest = digest_of(info);
    Header& mine = (*headers_)[static_cast<std::size_t>(group.rank())];
    mine.hash = digest.hash;
    digest.text.copy(mine.text.data(), mine.text.size() - 1);
    gathered_.info = info;
    gathered_.dtype = DType::i32;
    gathered_.out = reinterpret_cast<std::byte*>(headers_->data());
    gathered_.offsets = even_offsets(group.size() * std::int64_t{sizeof(Header) / 4}, group.size());
    const PhaseArguments arguments{group, gathered_, sizeof(Header), phase,
                                   PeerGroup::Channel::checks};
    const auto* in = reinterpret_cast<const std::byte*>(&mine);
    gather_ = check == Check::full ? std::make_unique<GatherPhase>(arguments, in)
                                   : make_gather_phase(arguments, in);
  }
  ~HeaderPhase() override {
    // Abandoned: the network may still write to the headers, so they outlive this phase.
    if (!complete_) leak_until_exit(headers_);
  }
  HeaderPhase(const HeaderPhase&) = delete;
  HeaderPhase& operator=(const HeaderPhase&) = delete;

  bool advance() override {
    complete_ = gather_->advance();
    if (!complete_) return false;
    std::vector<CallDigest> digests;
    for (Header& header : *headers_) {
      header.text.back() = '\0';
      digests.push_back({header.hash, header.text.data()});
    }
    if (const std::string text = disagreement(digests, group_.job_ranks()); !text.empty())
      throw CommError(text);
    return true;
  }
  [[nodiscard]] std::vector<int> missing() const override { return gather_->missing(); }

 private:
  const PeerGroup& group_;
  std::shared_ptr<std::vector<Header>> headers_;
  HostCall gathered_;
  Phase gather_;
  bool complete_ = false;
};

/// A broadcast along the tree of a gather.
class TreeBroadcastPhase final : public CollectivePhase {
 public:
  explicit TreeBroadcastPhase(const PhaseArguments& arguments) : gathered_(arguments.call) {
    const std::int64_t count = gathered_.count();
    gathered_.offsets.assign(static_cast<std::size_t>(arguments.group.size()) + 1, count);
    std::fill_n(gathered_.offsets.begin(), gathered_.root + 1, 0);
    gather_ = make_gather_phase(
        {arguments.group, gathered_, arguments.piece_bytes, arguments.phase}, gathered_.out);
  }
  bool advance() override { return gather_->advance(); }
  [[nodiscard]] std::vector<int> missing() const override { return gather_->missing(); }

 private:
  HostCall gathered_;
  Phase gather_;
};

}  // namespace

Phase make_reduce_phase(const PhaseArguments& arguments, std::byte* out) {
  if (arguments.group.size() > kMostInRankOrder) return make_tree_reduce_phase(arguments, out);
  return std::make_unique<ReducePhase>(arguments, out);
}

Phase make_gather_phase(const PhaseArguments& arguments, const std::byte* in) {
  if (arguments.group.size() > kMostInRankOrder) return make_tree_gather_phase(arguments, in);
  return std::make_unique<GatherPhase>(arguments, in);
}

Phase make_broadcast_phase(const PhaseArguments& arguments) {
  if (arguments.group.size() > kMostInRankOrder)
    return std::make_unique<TreeBroadcastPhase>(arguments);
  return std::make_unique<BroadcastPhase>(arguments);
}

Phase make_exchange_phase(const PhaseArguments& arguments) {
  return std::make_unique<ExchangePhase>(arguments);
}

Phase make_header_phase(PeerGroup& group, const CallInfo& info, Check check, int phase) {
  return std::make_unique<HeaderPhase>(group, info, check, phase);
}

}  // namespace dkfac::comm
