#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dkfac/kfac/state.h"

#include "app/checkpoint/safetensors.h"

/// State of the ranks of a run as tensors in one file per rank.
namespace dkfac::app {

/// Collects what this rank has to write: its own values, and on rank 0 those that are equal on all.
/// Tensors are borrowed, numbers copied.
class StateWriter final : public kfac::StateVisitor {
 public:
  explicit StateWriter(int rank) : rank_(rank) {}
  void tensor(const std::string& name, kfac::Held held, TensorView view) override;
  void integer(const std::string& name, kfac::Held held, std::int64_t& value) override;
  void real(const std::string& name, kfac::Held held, double& value) override;
  [[nodiscard]] const std::vector<safetensors::Item>& items() const { return items_; }

 private:
  [[nodiscard]] bool mine(kfac::Held held) const { return rank_ == 0 || held != kfac::Held::same; }

  int rank_;
  std::vector<safetensors::Item> items_;
  std::deque<std::int64_t> integers_;  ///< Addresses stay.
  std::deque<double> reals_;
};

/// The files of the ranks that wrote, by rank; those that this rank does not need may be left out.
using Shards = std::map<int, safetensors::File>;
/// Which ones rank `rank` of `ranks` needs of `written`.
[[nodiscard]] std::vector<int> needed_shards(int rank, int ranks, int written);

/// Puts values back where StateWriter found them, or where they belong when the number of ranks is
/// another one (see kfac::Held). One of 0 ranks takes no rank's place: it gets means over all that
/// wrote, and may leave out what it does not ask for. Notes what does not fit and goes on; finish()
/// reports it.
class StateReader final : public kfac::StateVisitor {
 public:
  StateReader(const Shards& shards, int rank, int ranks, int written);
  void tensor(const std::string& name, kfac::Held held, TensorView view) override;
  void integer(const std::string& name, kfac::Held held, std::int64_t& value) override;
  void real(const std::string& name, kfac::Held held, double& value) override;
  /// Throws DataError listing names that are missing, of another type or shape, or left over.
  void finish() const;

 private:
  struct Source {
    const safetensors::File* file;
    const safetensors::Entry* entry;
  };
  /// One, or for means and sums over another number of ranks all of them; none when missing.
  [[nodiscard]] std::vector<Source> sources(const std::string& name, kfac::Held held);
  [[nodiscard]] const safetensors::Entry* look(int shard, const std::string& name);

  const Shards& shards_;
  int rank_, ranks_, written_;
  std::set<std::string> taken_;  ///< From the shard of this rank.
  std::vector<std::string> problems_;
};

/// Puts a prefix before every name.
class PrefixVisitor final : public kfac::StateVisitor {
 public:
  PrefixVisitor(std::string prefix, kfac::StateVisitor& inner)
      : prefix_(std::move(prefix)), inner_(inner) {}
  void tensor(const std::string& name, kfac::Held held, TensorView view) override {
    inner_.tensor(prefix_ + name, held, view);
  }
  void integer(const std::string& name, kfac::Held held, std::int64_t& value) override {
    inner_.integer(prefix_ + name, held, value);
  }
  void real(const std::string& name, kfac::Held held, double& value) override {
    inner_.real(prefix_ + name, held, value);
  }

 private:
  std::string prefix_;
  kfac::StateVisitor& inner_;
};

/// "a, b, c and 4 more"
[[nodiscard]] std::string first_of(const std::vector<std::string>& problems);

}  // namespace dkfac::app
