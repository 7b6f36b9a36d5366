#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dkfac/core/state.h"

#include "app/checkpoint/safetensors.h"

/// Serialization of the state of all ranks as tensors in one file per rank.
namespace dkfac::app {

/// Visitor that collects the values this rank writes: its own ones, and on rank 0 the replicated
/// ones. Copies of values that an owner writes are left out.
class StateWriter final : public StateVisitor {
 public:
  /// Whether tensors are borrowed or copied; numbers are always copied. Copying is needed for
  /// tensors that do not outlive their visit, e.g. host copies of device memory.
  enum class Tensors : std::uint8_t { borrowed, copied };
  explicit StateWriter(int rank, Tensors tensors = Tensors::borrowed)
      : rank_(rank), tensors_(tensors) {}
  void tensor(const std::string& name, StateKind kind, TensorView view) override;
  void integer(const std::string& name, StateKind kind, std::int64_t& value) override;
  void real(const std::string& name, StateKind kind, double& value) override;
  [[nodiscard]] const std::vector<safetensors::Item>& items() const { return items_; }

 private:
  [[nodiscard]] bool mine(StateKind kind) const {
    return kind != StateKind::owner_copy && (rank_ == 0 || kind != StateKind::replicated);
  }

  int rank_;
  Tensors tensors_;
  std::vector<safetensors::Item> items_;
  std::deque<std::vector<std::byte>> copies_;
  std::deque<std::int64_t> integers_;  ///< A deque keeps addresses valid.
  std::deque<double> reals_;
};

/// Files of the writing ranks, by rank; files that this rank does not need may be absent.
using Shards = std::map<int, safetensors::File>;
/// Reads the file of a rank.
using OpenShard = std::function<safetensors::File(int)>;
/// Returns which of `written` files rank `rank` of `ranks` needs, regardless of ownership.
[[nodiscard]] std::vector<int> needed_shards(int rank, int ranks, int written);

/// Visitor that restores the values of StateWriter, redistributing them by StateKind if the number
/// of ranks differs. Owned values are searched in this rank's file first and then in all files,
/// because owners may have changed, and equal copies are written once.
///
/// With ranks = 0 the reader represents no rank: it gets means over all writing ranks, and may
/// leave entries unread. Mismatches are recorded, and finish() reports them.
class StateReader final : public StateVisitor {
 public:
  /// `open` reads further shards on demand; without it only `shards` are available.
  StateReader(Shards& shards, int rank, int ranks, int written, OpenShard open = {});
  void tensor(const std::string& name, StateKind kind, TensorView view) override;
  void integer(const std::string& name, StateKind kind, std::int64_t& value) override;
  void real(const std::string& name, StateKind kind, double& value) override;
  /// Names of the entries that this rank owns and another one wrote.
  [[nodiscard]] const std::vector<std::string>& moved() const { return moved_; }
  /// Throws DataError listing names that are missing, have another type or shape, or were not read.
  /// `moved` lists entries that this rank wrote and others own now.
  void finish(const std::set<std::string>& moved = {}) const;

 private:
  struct Saved {
    const safetensors::File* file;
    const safetensors::Entry* entry;
  };
  /// Restores a tensor whose rows are distributed over another number of ranks than when written.
  void rows(const std::string& name, const std::vector<Saved>& found, TensorView view);
  /// Finds the entry that the owner wrote: one part or none.
  [[nodiscard]] std::vector<Saved> owned(const std::string& name, StateKind kind);
  /// Returns one part; all of them for averaged, summed and sharded values over another number of
  /// ranks; none if missing.
  [[nodiscard]] std::vector<Saved> saved(const std::string& name, StateKind kind);
  [[nodiscard]] const safetensors::Entry* look(int shard, const std::string& name);

  Shards& shards_;
  OpenShard open_;
  int rank_, ranks_, written_;
  std::set<std::string> taken_;  ///< Names read from the shard of this rank.
  std::vector<std::string> moved_, problems_;
};

/// Visitor adapter that prepends a prefix to every name.
class PrefixVisitor final : public StateVisitor {
 public:
  PrefixVisitor(std::string prefix, StateVisitor& inner)
      : prefix_(std::move(prefix)), inner_(inner) {}
  void tensor(const std::string& name, StateKind kind, TensorView view) override {
    inner_.tensor(prefix_ + name, kind, view);
  }
  void integer(const std::string& name, StateKind kind, std::int64_t& value) override {
    inner_.integer(prefix_ + name, kind, value);
  }
  void real(const std::string& name, StateKind kind, double& value) override {
    inner_.real(prefix_ + name, kind, value);
  }

 private:
  std::string prefix_;
  StateVisitor& inner_;
};

/// Joins a list, e.g. "a, b, c and 4 more".
[[nodiscard]] std::string first_of(const std::vector<std::string>& problems);

}  // namespace dkfac::app
