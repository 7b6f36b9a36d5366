#include "app/checkpoint/state_io.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

template <class T>
T number_at(std::span<const std::byte> data, std::size_t i) {
  T value;
  std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
  return value;
}

/// Computes out = factor * sum of the parts, in f64.
template <class T>
void combine(const std::vector<std::span<const std::byte>>& parts, double factor, TensorView out) {
  T* values = out.data<T>();
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    double sum = 0;
    for (const auto& part : parts)
      sum += static_cast<double>(number_at<T>(part, static_cast<std::size_t>(i)));
    values[i] = static_cast<T>(factor * sum);
  }
}

}  // namespace

void StateWriter::tensor(const std::string& name, StateKind kind, TensorView view) {
  if (!mine(kind)) return;
  safetensors::Item item = safetensors::item(name, view);
  if (tensors_ == Tensors::copied)
    item.data = copies_.emplace_back(item.data.begin(), item.data.end());
  items_.push_back(std::move(item));
}
void StateWriter::integer(const std::string& name, StateKind kind, std::int64_t& value) {
  if (mine(kind)) items_.push_back(safetensors::item(name, integers_.emplace_back(value)));
}
void StateWriter::real(const std::string& name, StateKind kind, double& value) {
  if (mine(kind)) items_.push_back(safetensors::item(name, reals_.emplace_back(value)));
}

std::vector<int> needed_shards(int rank, int ranks, int written) {
  std::vector<int> shards;
  if (ranks == written) {
    shards = {0};  // Replicated values.
    if (rank != 0) shards.push_back(rank);
    return shards;
  }
  shards.resize(static_cast<std::size_t>(written));
  std::iota(shards.begin(), shards.end(), 0);
  return shards;
}

StateReader::StateReader(Shards& shards, int rank, int ranks, int written, OpenShard open)
    : shards_(shards), open_(std::move(open)), rank_(rank), ranks_(ranks), written_(written) {}

const safetensors::Entry* StateReader::look(int shard, const std::string& name) {
  auto file = shards_.find(shard);
  if (file == shards_.end() && open_) file = shards_.emplace(shard, open_(shard)).first;
  if (file == shards_.end()) return nullptr;
  if (shard == rank_) taken_.insert(name);
  return file->second.find(name);
}

std::vector<StateReader::Saved> StateReader::owned(const std::string& name, StateKind kind) {
  const bool same_ranks = ranks_ == written_;
  for (int i = same_ranks ? -1 : 0; i < written_; ++i) {
    const int shard = i < 0 ? rank_ : i;
    const auto* entry = look(shard, name);
    if (entry == nullptr) continue;
    if (same_ranks && shard != rank_ && kind == StateKind::owned) moved_.push_back(name);
    return {{&shards_.at(shard), entry}};
  }
  return {};
}

std::vector<StateReader::Saved> StateReader::saved(const std::string& name, StateKind kind) {
  std::vector<int> where;
  if (kind == StateKind::replicated) {
    where = {0};
  } else if (ranks_ == written_) {
    where = {rank_};
  } else if (kind == StateKind::any_rank) {
    where = {rank_ % written_};
  } else {
    where = needed_shards(rank_, ranks_, written_);
  }
  std::vector<Saved> found;
  if (kind == StateKind::owned || kind == StateKind::owner_copy)
    found = owned(name, kind);
  else
    for (const int shard : where)
      if (const auto* entry = look(shard, name)) found.push_back({&shards_.at(shard), entry});
  if (found.empty()) problems_.push_back(fmt::format("'{}' is missing", name));
  return found;
}

void StateReader::rows(const std::string& name, const std::vector<Saved>& found, TensorView view) {
  std::vector<std::byte> all;
  const std::size_t row =
      view.dim(0) == 0 ? 0 : view.bytes() / static_cast<std::size_t>(view.dim(0));
  std::int64_t total = 0;
  for (const Saved& part : found) {
    std::vector<std::int64_t> dims = safetensors::extents(view.shape());
    if (!part.entry->shape.empty()) dims[0] = part.entry->shape[0];
    const Shape like{std::span<const std::int64_t>(dims)};
    const std::string other = safetensors::mismatch(*part.entry, view.dtype(), like);
    if (!other.empty()) {
      problems_.push_back(fmt::format("'{}' is {}", name, other));
      return;
    }
    const auto data = part.file->data(*part.entry);
    all.insert(all.end(), data.begin(), data.end());
    total += dims[0];
  }
  const std::int64_t base = total / ranks_, longer = total % ranks_;
  const std::int64_t first = rank_ * base + std::min<std::int64_t>(rank_, longer);
  if (view.dim(0) != base + (rank_ < longer ? 1 : 0)) {
    problems_.push_back(
        fmt::format("'{}' has {} rows, whose share is not {}", name, total, view.dim(0)));
    return;
  }
  if (view.numel() > 0)
    std::memcpy(view.raw(), all.data() + static_cast<std::size_t>(first) * row, view.bytes());
}

void StateReader::tensor(const std::string& name, StateKind kind, TensorView view) {
  std::vector<std::span<const std::byte>> parts;
  const std::vector<Saved> found = saved(name, kind);
  if (kind == StateKind::sharded && ranks_ != written_ && ranks_ > 0) {
    if (!found.empty()) rows(name, found, view);
    return;
  }
  for (const Saved& part : found) {
    const std::string other = safetensors::mismatch(*part.entry, view.dtype(), view.shape());
    if (!other.empty()) {
      problems_.push_back(fmt::format("'{}' is {}", name, other));
      return;
    }
    parts.push_back(part.file->data(*part.entry));
  }
  if (parts.empty() || view.numel() == 0) return;
  const bool sum = kind == StateKind::summed && ranks_ != written_;
  const double factor = sum ? (rank_ == 0 ? 1.0 : 0.0) : 1.0 / static_cast<double>(parts.size());
  if (parts.size() == 1 && !sum)
    std::memcpy(view.raw(), parts[0].data(), parts[0].size());
  else if (view.dtype() == DType::f64)
    combine<double>(parts, factor, view);
  else if (view.dtype() == DType::f32)
    combine<float>(parts, factor, view);
  else
    problems_.push_back(fmt::format("'{}' cannot be merged", name));
}

void StateReader::integer(const std::string& name, StateKind kind, std::int64_t& value) {
  const std::vector<Saved> found = saved(name, kind);
  if (found.empty()) return;
  if (found[0].entry->dtype != "I64" || !found[0].entry->shape.empty()) {
    problems_.push_back(
        fmt::format("'{}' is {} instead of I64 []", name, describe(*found[0].entry)));
    return;
  }
  value = number_at<std::int64_t>(found[0].file->data(*found[0].entry), 0);
}

void StateReader::real(const std::string& name, StateKind kind, double& value) {
  tensor(name, kind, TensorView(&value, DType::f64, Shape{}));
}

void StateReader::finish(const std::set<std::string>& moved) const {
  std::vector<std::string> problems = problems_;
  if (const auto own = shards_.find(rank_); ranks_ == written_ && own != shards_.end())
    for (const auto& [name, entry] : own->second.entries())
      if (!taken_.contains(name) && !moved.contains(name))
        problems.push_back(fmt::format("'{}' is not expected", printable(name)));
  if (problems.empty()) return;
  throw DataError(
      fmt::format("[checkpoint] the state of the run does not fit: {}; resume with the "
                  "model and the optimizer that wrote it",
                  first_of(problems)));
}

std::string first_of(const std::vector<std::string>& problems) {
  constexpr std::size_t kShown = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, problems.size()); ++i)
    text += (i > 0 ? ", " : "") + problems[i];
  if (problems.size() > kShown) text += fmt::format(" and {} more", problems.size() - kShown);
  return text;
}

}  // namespace dkfac::app
