#pragma once

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "dkfac/core/state.h"

/// A StateVisitor in memory: saves one rank's values by name, and restores them.
namespace dkfac::testing {

struct SavedValue {
  StateKind kind;
  DType dtype;
  Shape shape;
  std::string bytes;
};
using SavedState = std::map<std::string, SavedValue>;

class Saver final : public StateVisitor {
 public:
  SavedState state;

  void tensor(const std::string& name, StateKind kind, TensorView view) override {
    add(name, {kind, view.dtype(), view.shape(),
               std::string(static_cast<const char*>(view.raw()), view.bytes())});
  }
  void integer(const std::string& name, StateKind kind, std::int64_t& value) override {
    add(name, {kind, DType::i32, {}, text(value)});
  }
  void real(const std::string& name, StateKind kind, double& value) override {
    add(name, {kind, DType::f64, {}, text(value)});
  }

 private:
  template <class T>
  static std::string text(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }
  void add(const std::string& name, SavedValue value) {
    if (!state.emplace(name, std::move(value)).second) throw std::logic_error("twice: " + name);
  }
};

/// Reads each value from the state of this rank, else from that of any other.
class Loader final : public StateVisitor {
 public:
  Loader(const std::vector<SavedState>& ranks, int rank)
      : ranks_(ranks), rank_(static_cast<std::size_t>(rank)) {}

  void tensor(const std::string& name, StateKind, TensorView view) override {
    const SavedValue& saved = find(name);
    if (saved.dtype != view.dtype() || saved.shape != view.shape())
      throw std::logic_error("another shape: " + name);
    std::memcpy(view.raw(), saved.bytes.data(), saved.bytes.size());
  }
  void integer(const std::string& name, StateKind, std::int64_t& value) override {
    std::memcpy(&value, find(name).bytes.data(), sizeof(value));
  }
  void real(const std::string& name, StateKind, double& value) override {
    std::memcpy(&value, find(name).bytes.data(), sizeof(value));
  }

 private:
  const SavedValue& find(const std::string& name) const {
    if (rank_ < ranks_.size())
      if (const auto at = ranks_[rank_].find(name); at != ranks_[rank_].end()) return at->second;
    for (const SavedState& state : ranks_)
      if (const auto at = state.find(name); at != state.end()) return at->second;
    throw std::logic_error("there is no " + name);
  }

  const std::vector<SavedState>& ranks_;
  std::size_t rank_;
};

}  // namespace dkfac::testing
