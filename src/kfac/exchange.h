#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

/// Sums over ranks of many blocks, each needed by its owner only: blocks are laid out by owner in
/// buckets, and each bucket leaves as one collective as soon as it is full.
namespace dkfac::kfac {

/// One block of data.
struct Slot {
  int owner = 0;
  std::int64_t count = 0;  ///< Elements.
  int time = 0;            ///< When it is filled within an iteration; ascending in slot order.
};

struct Bucket {
  std::int64_t first = 0;  ///< Offset in the staging buffer.
  std::int64_t numel = 0;
  std::vector<std::int64_t> counts;  ///< Elements per rank, tail included.
  std::vector<int> slots;
  int time = 0;  ///< Of its last slot.
};

/// Where everything lies. Segment r of a bucket holds the slots owned by r, in slot order. In the
/// last bucket every segment, also an otherwise empty one, ends in `tail` elements more.
struct ExchangePlan {
  std::vector<Bucket> buckets;
  std::vector<std::int64_t> offsets;  ///< Per slot, in the staging buffer.
  std::vector<int> bucket_of;         ///< Per slot.
  std::vector<std::int64_t> tails;    ///< Per rank: offset of its tail; empty without one.
  std::int64_t numel = 0;             ///< Of the staging buffer.
};

/// Pure: equal arguments give equal plans on every rank. A bucket is closed once it holds at least
/// bucket_elements. Without slots there is one bucket for the tail, or none.
[[nodiscard]] ExchangePlan plan_exchange(std::span<const Slot> slots, int world_size,
                                         std::int64_t bucket_elements, std::int64_t tail);

/// Who gets the sums.
enum class Recipients : std::uint8_t {
  owners,  ///< reduce_scatter_v: a slot's sum is valid on its owner.
  all      ///< all_reduce: every slot's sum is valid on every rank.
};

/// Staging buffer and progress of one plan. Fill slots, mark them, launch buckets in order, wait
/// for the stream, read the sums where they were written, reset.
class Exchange {
 public:
  Exchange(Context& ctx, const comm::Communicator& comm, std::string name, Recipients recipients,
           std::vector<Slot> slots, DType dtype, std::int64_t bucket_bytes, std::int64_t tail);

  [[nodiscard]] const ExchangePlan& plan() const { return plan_; }
  [[nodiscard]] int buckets() const { return static_cast<int>(plan_.buckets.size()); }
  [[nodiscard]] int slots() const { return static_cast<int>(slots_.size()); }
  [[nodiscard]] bool has_tail() const { return !plan_.tails.empty(); }
  [[nodiscard]] std::size_t bytes() const { return staging_.bytes(); }
  /// [count]: this rank's part until the launch, the sum afterwards.
  [[nodiscard]] TensorView slot(int index);
  [[nodiscard]] bool filled(int index) const { return filled_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] bool launched(int index) const;
  void mark_filled(int index) { filled_[static_cast<std::size_t>(index)] = true; }
  /// All slots of `bucket` are filled.
  [[nodiscard]] bool ready(int bucket) const;
  /// Writes this rank's tail elements into every segment, resp. reads their sums back.
  void write_tail(Context& ctx, std::span<const double> values);
  void read_tail(Context& ctx, std::span<double> values);
  void launch(comm::Communicator& comm, int bucket, Stream stream);
  void reset();

 private:
  std::string name_;
  Recipients recipients_;
  int rank_;
  std::int64_t tail_;
  std::vector<Slot> slots_;
  ExchangePlan plan_;
  Tensor staging_;
  std::vector<bool> filled_;
  int launched_buckets_ = 0;
};

}  // namespace dkfac::kfac
