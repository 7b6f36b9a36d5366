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

/// State of the ranks of a run as tensors in one file per rank.
namespace dkfac::app {

/// Collects what this rank has to write: its own values, and on rank 0 those that are equal on all;
/// no copies of what an owner writes.
class StateWriter final : public StateVisitor {
 public:
  /// Numbers are copied, tensors too where they do not outlive their visit, as copies of what lies
  /// on a device.
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
  std::deque<std::int64_t> integers_;  ///< Addresses stay.
  std::deque<double> reals_;
};

/// The files of the ranks that wrote, by rank; those that this rank does not need may be left out.
using Shards = std::map<int, safetensors::File>;
/// Reads the file of a rank.
using OpenShard = std::function<safetensors::File(int)>;
/// Which ones rank `rank` of `ranks` needs of `written`, whoever owns what.
[[nodiscard]] std::vector<int> needed_shards(int rank, int ranks, int written);

/// Puts values back where StateWriter found them, or where they belong when the number of ranks is
/// another one (see StateKind). What owners hold is looked for where this rank wrote, and then
/// everywhere: owners may have changed, and equal copies are written once. One of 0 ranks takes no
/// rank's place: it gets means over all that wrote, and may leave out what it does not ask for.
/// Records what does not fit and continues; finish() reports it.
class StateReader final : public StateVisitor {
 public:
  /// open: for shards that turn out to be needed as well; without it `shards` are all there are.
  StateReader(Shards& shards, int rank, int ranks, int written, OpenShard open = {});
  void tensor(const std::string& name, StateKind kind, TensorView view) override;
  void integer(const std::string& name, StateKind kind, std::int64_t& value) override;
  void real(const std::string& name, StateKind kind, double& value) override;
  /// Names of what this rank owns and another one wrote.
  [[nodiscard]] const std::vector<std::string>& moved() const { return moved_; }
  /// Throws DataError listing names that are missing, of another type or shape, or left over.
  /// moved: what this rank wrote and others own now.
  void finish(const std::set<std::string>& moved = {}) const;

 private:
  struct Source {
    const safetensors::File* file;
    const safetensors::Entry* entry;
  };
  /// Of a tensor whose rows are shared out over another number of ranks than they were.
  void rows(const std::string& name, const std::vector<Source>& found, TensorView view);
  /// Where its owner wrote it, as one source or none.
  [[nodiscard]] std::vector<Source> owned(const std::string& name, StateKind kind);
  /// One, or for means, sums and rows over another number of ranks all of them; none when missing.
  [[nodiscard]] std::vector<Source> sources(const std::string& name, StateKind kind);
  [[nodiscard]] const safetensors::Entry* look(int shard, const std::string& name);

  Shards& shards_;
  OpenShard open_;
  int rank_, ranks_, written_;
  std::set<std::string> taken_;  ///< From the shard of this rank.
  std::vector<std::string> moved_, problems_;
};

/// Puts a prefix before every name.
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

/// "a, b, c and 4 more"
[[nodiscard]] std::string first_of(const std::vector<std::string>& problems);

}  // namespace dkfac::app
