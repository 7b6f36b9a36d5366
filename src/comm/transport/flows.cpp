#include "comm/transport/flows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "dkfac/core/error.h"

#include "comm/call_info.h"
#include "comm/transport/kept.h"
#include "comm/transport/lanes.h"
#include "comm/transport/reduce.h"

namespace dkfac::comm {

namespace {

constexpr std::int64_t kAllPieces = std::numeric_limits<std::int64_t>::max();

std::int64_t byte_count(const HostCall& call, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(call.element());
}

std::int64_t piece_of(std::int64_t piece_bytes) {
  // A network may count in 32-bit integers.
  return std::min<std::int64_t>(whole_elements(piece_bytes), std::int64_t{1} << 30);
}

Lane send_lane(int peer, const std::byte* memory, std::int64_t bytes, std::int64_t piece) {
  Lane lane;
  lane.way = Lane::Way::send;
  lane.peer = peer;
  lane.memory = const_cast<std::byte*>(memory);  // NOLINT: never written through when sending
  lane.bytes = bytes;
  lane.piece = piece;
  lane.allowed = kAllPieces;
  return lane;
}

Lane receive_lane(int peer, std::byte* memory, std::int64_t bytes, std::int64_t piece) {
  Lane lane = send_lane(peer, memory, bytes, piece);
  lane.way = Lane::Way::receive;
  return lane;
}

/// The other ranks, each rank starting with its successor so that not all begin with rank 0.
std::vector<int> peers_of(const PeerGroup& group) {
  std::vector<int> peers;
  for (int i = 1; i < group.size(); ++i) peers.push_back((group.rank() + i) % group.size());
  return peers;
}

class ReduceFlow final : public Flow {
 public:
  ReduceFlow(PeerGroup& group, const HostCall& call, std::int64_t piece_bytes, std::byte* out,
             int phase)
      : rank_(group.rank()),
        call_(call),
        piece_(reduce_piece(piece_bytes, group.size())),
        out_(out),
        own_bytes_(byte_count(call, call.segment(rank_))),
        receive_lane_(static_cast<std::size_t>(group.size())),
        lanes_(group.make_lanes(PeerGroup::Channel::data, call.info, phase)) {
    const std::int64_t ring = std::min(piece_, whole_elements(own_bytes_ + 7)) * kPiecesInFlight;
    std::byte* scratch =
        group.scratch(static_cast<std::size_t>(ring) * static_cast<std::size_t>(group.size() - 1));
    for (const int peer : peers_of(group)) {
      Lane lane = receive_lane(peer, scratch, own_bytes_, piece_);
      lane.kind = Lane::Memory::ring;
      lane.allowed = kPiecesInFlight;
      lane.announced = call.kind == HostCall::Kind::all_reduce;
      receive_lane_[static_cast<std::size_t>(peer)] = lanes_->add(lane);
      scratch += ring;
    }
    for (const int peer : peers_of(group)) {
      Lane lane = send_lane(peer, call.in + byte_count(call, call.offset(peer)),
                            byte_count(call, call.segment(peer)), piece_);
      lane.announced = call.kind == HostCall::Kind::all_reduce;
      lanes_->add(lane);
    }
  }

  bool advance() override {
    lanes_->advance();
    if (reduced_ < own_pieces() && ready()) reduce_piece_of_all();
    return reduced_ == own_pieces() && lanes_->complete();
  }
  [[nodiscard]] std::vector<int> missing() const override { return lanes_->missing(); }

 private:
  /// Scratch holds kPiecesInFlight pieces of every peer: in large groups pieces get shorter, down
  /// to 4 KB, so that scratch stays near 64 pieces. The same on every rank.
  static std::int64_t reduce_piece(std::int64_t piece_bytes, int size) {
    const std::int64_t whole = piece_of(piece_bytes);
    const std::int64_t share = 64 * whole / (kPiecesInFlight * std::max(size - 1, 1));
    return piece_of(std::min(whole, std::max<std::int64_t>(4096, share)));
  }

  [[nodiscard]] std::int64_t own_pieces() const { return (own_bytes_ + piece_ - 1) / piece_; }

  bool ready() {
    for (std::size_t peer = 0; peer < receive_lane_.size(); ++peer) {
      if (peer == static_cast<std::size_t>(rank_)) continue;
      if ((*lanes_)[receive_lane_[peer]].done <= reduced_) return false;
    }
    return true;
  }

  void reduce_piece_of_all() {
    const std::int64_t begin = reduced_ * piece_;
    std::vector<const std::byte*> inputs;
    for (std::size_t r = 0; r < receive_lane_.size(); ++r) {
      inputs.push_back(r == static_cast<std::size_t>(rank_)
                           ? call_.in + byte_count(call_, call_.offset(rank_)) + begin
                           : (*lanes_)[receive_lane_[r]].memory_of(reduced_));
    }
    const std::int64_t bytes = std::min(piece_, own_bytes_ - begin);
    reduce_in_order(call_.op, call_.dtype, inputs,
                    bytes / static_cast<std::int64_t>(call_.element()), out_ + begin);
    ++reduced_;
    for (std::size_t r = 0; r < receive_lane_.size(); ++r) {
      if (r != static_cast<std::size_t>(rank_))
        (*lanes_)[receive_lane_[r]].allowed = reduced_ + kPiecesInFlight;
    }
  }

  int rank_;
  const HostCall& call_;
  std::int64_t piece_;
  std::byte* out_;
  std::int64_t own_bytes_;
  std::int64_t reduced_ = 0;  ///< Pieces of the own segment that are done.
  std::vector<std::size_t> receive_lane_;
  std::unique_ptr<Lanes> lanes_;
};

/// Lanes without any work between their pieces.
class PlainFlow : public Flow {
 public:
  PlainFlow(PeerGroup& group, PeerGroup::Channel channel, const CallInfo& info, int phase)
      : lanes_(group.make_lanes(channel, info, phase)) {}
  bool advance() override { return lanes_->advance(); }
  [[nodiscard]] std::vector<int> missing() const override { return lanes_->missing(); }

 protected:
  std::unique_ptr<Lanes> lanes_;
};

class GatherFlow final : public PlainFlow {
 public:
  GatherFlow(PeerGroup& group, const HostCall& call, std::int64_t piece_bytes, const std::byte* in,
             int phase)
      : PlainFlow(group, PeerGroup::Channel::data, call.info, phase) {
    const std::int64_t piece = piece_of(piece_bytes);
    const std::int64_t own = byte_count(call, call.segment(group.rank()));
    std::byte* place = call.out + byte_count(call, call.offset(group.rank()));
    if (own > 0 && place != in) std::memcpy(place, in, static_cast<std::size_t>(own));
    for (const int peer : peers_of(group)) {
      lanes_->add(receive_lane(peer, call.out + byte_count(call, call.offset(peer)),
                               byte_count(call, call.segment(peer)), piece));
    }
    for (const int peer : peers_of(group)) lanes_->add(send_lane(peer, in, own, piece));
  }
};

class BroadcastFlow final : public PlainFlow {
 public:
  BroadcastFlow(PeerGroup& group, const HostCall& call, std::int64_t piece_bytes, int phase)
      : PlainFlow(group, PeerGroup::Channel::data, call.info, phase) {
    const int size = group.size();
    const int place = (group.rank() - call.root + size) % size;  // the root stands at 0
    const auto rank_at = [&](int p) { return (p + call.root) % size; };
    const std::int64_t bytes = byte_count(call, call.count());
    const std::int64_t piece = piece_of(piece_bytes);
    int reach = 1;  // the tree below `place` covers [place, place + reach)
    while (reach < size && (place & reach) == 0) reach *= 2;
    passes_on_ = place != 0;
    if (passes_on_) lanes_->add(receive_lane(rank_at(place - reach), call.out, bytes, piece));
    for (int step = reach / 2; step > 0; step /= 2) {  // the deepest subtree first
      if (place + step >= size) continue;
      Lane lane = send_lane(rank_at(place + step), call.out, bytes, piece);
      if (passes_on_) lane.allowed = 0;
      lanes_->add(lane);
    }
  }

  bool advance() override {
    const bool complete = lanes_->advance();
    if (complete || !passes_on_) return complete;
    for (std::size_t i = 1; i < lanes_->size(); ++i) (*lanes_)[i].allowed = (*lanes_)[0].done;
    return false;
  }

 private:
  bool passes_on_ = false;
};

/// What travels of a CallRecord.
struct Header {
  std::uint64_t hash = 0;
  std::array<char, 248> text{};
};

class HeaderFlow final : public PlainFlow {
 public:
  HeaderFlow(PeerGroup& group, const CallInfo& info, int phase)
      : PlainFlow(group, PeerGroup::Channel::checks, info, phase),
        headers_(static_cast<std::size_t>(group.size())) {
    const CallRecord record = record_of(info);
    Header& mine = headers_[static_cast<std::size_t>(group.rank())];
    mine.hash = record.hash;
    record.text.copy(mine.text.data(), mine.text.size() - 1);
    const auto bytes = static_cast<std::int64_t>(sizeof(Header));
    for (const int peer : peers_of(group)) {
      auto* theirs = reinterpret_cast<std::byte*>(&headers_[static_cast<std::size_t>(peer)]);
      lanes_->add(receive_lane(peer, theirs, bytes, bytes));
    }
    for (const int peer : peers_of(group))
      lanes_->add(send_lane(peer, reinterpret_cast<const std::byte*>(&mine), bytes, bytes));
  }
  ~HeaderFlow() override {
    // Given up: what the network may still write to outlives this flow.
    if (lanes_->busy()) keep_for_ever(std::make_shared<std::vector<Header>>(std::move(headers_)));
  }
  HeaderFlow(const HeaderFlow&) = delete;
  HeaderFlow& operator=(const HeaderFlow&) = delete;

  bool advance() override {
    if (!lanes_->advance()) return false;
    std::vector<CallRecord> records;
    for (Header& header : headers_) {
      header.text.back() = '\0';
      records.push_back({header.hash, header.text.data()});
    }
    if (const std::string text = disagreement(records); !text.empty()) throw CommError(text);
    return true;
  }

 private:
  std::vector<Header> headers_;
};

}  // namespace

std::unique_ptr<Flow> make_reduce_flow(PeerGroup& group, const HostCall& call,
                                       std::int64_t piece_bytes, std::byte* out, int phase) {
  return std::make_unique<ReduceFlow>(group, call, piece_bytes, out, phase);
}

std::unique_ptr<Flow> make_gather_flow(PeerGroup& group, const HostCall& call,
                                       std::int64_t piece_bytes, const std::byte* in, int phase) {
  return std::make_unique<GatherFlow>(group, call, piece_bytes, in, phase);
}

std::unique_ptr<Flow> make_broadcast_flow(PeerGroup& group, const HostCall& call,
                                          std::int64_t piece_bytes, int phase) {
  return std::make_unique<BroadcastFlow>(group, call, piece_bytes, phase);
}

std::unique_ptr<Flow> make_header_flow(PeerGroup& group, const CallInfo& info, int phase) {
  return std::make_unique<HeaderFlow>(group, info, phase);
}

}  // namespace dkfac::comm
