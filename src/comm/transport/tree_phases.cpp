#include "comm/transport/tree_phases.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/transport/phase_transfers.h"
#include "comm/transport/reduce.h"
#include "comm/transport/sum_order.h"

namespace dkfac::comm {
namespace {

/// Place of the elements of a range in a message; each begins at a multiple of the largest element.
struct MessageSpan {
  TreeRange range;
  std::int64_t at = 0, bytes = 0;
};
struct MessageLayout {
  std::vector<MessageSpan> spans;
  std::int64_t bytes = 0;
};

std::int64_t rounded_up(std::int64_t bytes) { return (bytes + 7) / 8 * 8; }

std::size_t length(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }

/// The steps of a collective along the tree, each begun when the one before is complete.
class TreePhase : public CollectivePhase {
 public:
  explicit TreePhase(const PhaseArguments& arguments)
      : group_(arguments.group),
        call_(arguments.call),
        piece_(piece_of(arguments.piece_bytes)),
        phase_(arguments.phase),
        channel_(arguments.channel) {}

  bool advance() override {
    for (; done_ < group_.tree().size(); ++done_) {
      if (transfers_ == nullptr) {
        transfers_ = group_.make_transfers(channel_, call_.info, phase_);
        begin(done_);
      }
      const bool complete = transfers_->advance();
      take_arrived();
      if (!complete) return false;
      end();
      transfers_.reset();
    }
    return true;
  }
  [[nodiscard]] std::vector<int> missing() const override {
    return transfers_ == nullptr ? std::vector<int>() : transfers_->missing();
  }

 protected:
  /// Adds the transfers of the step after `done` others.
  virtual void begin(std::size_t done) = 0;
  virtual void take_arrived() {}
  virtual void end() = 0;

  [[nodiscard]] virtual DType type_of(const TreeRange& range) const = 0;
  /// Memory of the first element of a range that is sent.
  [[nodiscard]] virtual const std::byte* source(const TreeRange& range) const = 0;

  [[nodiscard]] std::int64_t element(const TreeRange& range) const {
    return static_cast<std::int64_t>(size_of(type_of(range)));
  }
  [[nodiscard]] MessageLayout layout_of(const TreeMessage& message) const {
    MessageLayout layout;
    for (const TreeRange& range : message.ranges) {
      const std::int64_t count = call_.offset(range.last) - call_.offset(range.first);
      layout.spans.push_back({range, rounded_up(layout.bytes), count * element(range)});
      layout.bytes = layout.spans.back().at + layout.spans.back().bytes;
    }
    return layout;
  }
  /// Memory for packed messages: of all those of one step that have several ranges.
  [[nodiscard]] std::int64_t packed_bytes(const std::vector<TreeMessage>& messages) const {
    std::int64_t bytes = 0;
    for (const TreeMessage& message : messages)
      if (message.ranges.size() > 1) bytes += rounded_up(layout_of(message).bytes);
    return bytes;
  }
  /// Adds the messages to send; those of several ranges are packed at `scratch`, which advances.
  void send(const std::vector<TreeMessage>& messages, std::byte*& scratch) {
    for (const TreeMessage& message : messages) {
      const MessageLayout layout = layout_of(message);
      const std::byte* memory = source(message.ranges.front());
      if (message.ranges.size() > 1) {
        for (const MessageSpan& span : layout.spans)
          if (span.bytes > 0)
            std::memcpy(scratch + span.at, source(span.range), length(span.bytes));
        memory = scratch;
        scratch += rounded_up(layout.bytes);
      }
      add(send_transfer(message.peer, memory, layout.bytes, piece_));
    }
  }
  std::size_t add(Transfer transfer) {
    // In an all_reduce each rank receives a message in each step, also one without elements.
    transfer.announced = call_.kind == HostCall::Kind::all_reduce;
    return transfers_->add(transfer);
  }

  PeerGroup& group_;
  const HostCall& call_;
  std::int64_t piece_;
  std::unique_ptr<Transfers> transfers_;  ///< Of the running step.

 private:
  int phase_;
  PeerGroup::Channel channel_;
  std::size_t done_ = 0;  ///< Steps.
};

class TreeReducePhase final : public TreePhase {
 public:
  TreeReducePhase(const PhaseArguments& arguments, std::byte* out)
      : TreePhase(arguments), out_(out) {
    const DType wide = sum_type(call_.dtype);
    const std::int64_t sums =
        wide == call_.dtype ? 0
                            : rounded_up(call_.count() * static_cast<std::int64_t>(size_of(wide)));
    std::int64_t most = 0;
    for (const TreeStep& step : group_.tree()) {
      std::int64_t bytes = packed_bytes(step.sent);
      for (const TreeMessage& message : step.received) bytes += ring_of(layout_of(message));
      most = std::max(most, bytes);
    }
    std::byte* memory = group_.scratch(length(sums + most));
    // The caller of a reduce-scatter passes x mutable and leaves its contents unspecified.
    sums_ = sums == 0 ? const_cast<std::byte*>(call_.in) : memory;
    scratch_ = memory + sums;
    widen_parts(call_.dtype, call_.in, call_.count(), sums_);
  }

 private:
  struct Incoming {
    std::size_t transfer = 0;
    MessageLayout layout;
    std::int64_t added = 0;  ///< Pieces.
  };

  [[nodiscard]] std::int64_t ring_of(const MessageLayout& layout) const {
    return std::min(piece_, rounded_up(layout.bytes)) * kPiecesInFlight;
  }
  [[nodiscard]] DType type_of(const TreeRange& range) const override {
    return range.summed ? sum_type(call_.dtype) : call_.dtype;
  }
  [[nodiscard]] const std::byte* source(const TreeRange& range) const override {
    return (range.summed ? sums_ : call_.in) + call_.offset(range.first) * element(range);
  }

  void begin(std::size_t done) override {
    const TreeStep& step = group_.tree()[done];
    std::byte* scratch = scratch_;
    incoming_.clear();
    for (const TreeMessage& message : step.received) {
      MessageLayout layout = layout_of(message);
      Transfer transfer = receive_transfer(message.peer, scratch, layout.bytes, piece_);
      transfer.kind = Transfer::Memory::ring;
      transfer.allowed = kPiecesInFlight;
      scratch += ring_of(layout);
      incoming_.push_back({add(transfer), std::move(layout)});
    }
    send(step.sent, scratch);
  }

  void take_arrived() override {
    for (Incoming& from : incoming_) {
      Transfer& transfer = (*transfers_)[from.transfer];
      for (; from.added < transfer.done; ++from.added) add_piece(from.layout, transfer, from.added);
      transfer.allowed = from.added + kPiecesInFlight;
    }
  }

  void add_piece(const MessageLayout& layout, const Transfer& transfer, std::int64_t piece) {
    const std::int64_t first = piece * transfer.piece, last = first + transfer.bytes_of(piece);
    for (const MessageSpan& span : layout.spans) {
      const std::int64_t begin = std::max(first, span.at),
                         end = std::min(last, span.at + span.bytes);
      if (begin >= end) continue;
      const std::int64_t at =
          call_.offset(span.range.first) + (begin - span.at) / element(span.range);
      add_to_sums(call_.op, call_.dtype, transfer.memory_of(piece) + (begin - first),
                  span.range.summed, span.range.is_lower, (end - begin) / element(span.range),
                  sums_ + length(at) * size_of(sum_type(call_.dtype)));
    }
  }

  void end() override {
    if (++ended_ < group_.tree().size()) return;
    const int rank = group_.rank();
    round_sums(call_.dtype, sums_ + length(call_.offset(rank)) * size_of(sum_type(call_.dtype)),
               call_.segment(rank), out_);
  }

  std::byte* out_;
  std::byte* sums_;  ///< By element; call.in itself unless sums are wider.
  std::byte* scratch_;
  std::vector<Incoming> incoming_;  ///< Of the running step.
  std::size_t ended_ = 0;
};

class TreeGatherPhase final : public TreePhase {
 public:
  TreeGatherPhase(const PhaseArguments& arguments, const std::byte* in) : TreePhase(arguments) {
    std::int64_t most = 0;
    for (const TreeStep& step : group_.tree())
      most = std::max(most, packed_bytes(step.sent) + packed_bytes(step.received));
    scratch_ = group_.scratch(length(most));
    const std::int64_t own = byte_count(call_, call_.segment(group_.rank()));
    std::byte* place = call_.out + byte_count(call_, call_.offset(group_.rank()));
    if (own > 0 && place != in) std::memcpy(place, in, length(own));
  }

 private:
  struct Packed {
    const std::byte* memory = nullptr;
    MessageLayout layout;
  };

  [[nodiscard]] DType type_of(const TreeRange&) const override { return call_.dtype; }
  [[nodiscard]] const std::byte* source(const TreeRange& range) const override {
    return place_of(range);
  }
  [[nodiscard]] std::byte* place_of(const TreeRange& range) const {
    return call_.out + byte_count(call_, call_.offset(range.first));
  }

  void begin(std::size_t done) override {
    const TreeStep& step = group_.tree()[group_.tree().size() - 1 - done];
    std::byte* scratch = scratch_;
    packed_.clear();
    for (const TreeMessage& message : step.sent) {
      MessageLayout layout = layout_of(message);
      const bool several = message.ranges.size() > 1;
      add(receive_transfer(message.peer, several ? scratch : place_of(message.ranges.front()),
                           layout.bytes, piece_));
      if (!several) continue;
      packed_.push_back({scratch, layout});
      scratch += rounded_up(layout.bytes);
    }
    send(step.received, scratch);
  }

  void end() override {
    for (const Packed& packed : packed_)
      for (const MessageSpan& span : packed.layout.spans)
        if (span.bytes > 0)
          std::memcpy(place_of(span.range), packed.memory + span.at, length(span.bytes));
  }

  std::byte* scratch_;
  std::vector<Packed> packed_;  ///< Arriving messages of several ranges.
};

}  // namespace

Phase make_tree_reduce_phase(const PhaseArguments& arguments, std::byte* out) {
  return std::make_unique<TreeReducePhase>(arguments, out);
}

Phase make_tree_gather_phase(const PhaseArguments& arguments, const std::byte* in) {
  return std::make_unique<TreeGatherPhase>(arguments, in);
}

}  // namespace dkfac::comm
