#include "probe/writer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"

namespace dkfac::probe {
namespace {

/// FNV-1a.
std::uint64_t hash_of(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 0x100000001b3;
  return hash;
}

template <class T>
std::string formatted(const char* format, T value) {
  std::array<char, 40> text{};
  (void)std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string statistic(kfac::StatisticKind kind) {
  if (kind == kfac::StatisticKind::a) return "A";
  return kind == kfac::StatisticKind::g ? "G" : "norm";
}

std::string sharing(StateKind kind) {
  constexpr const char* kNames[] = {"same", "owner", "copy", "mean", "sum", "any", "rows"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace

std::string canonical(const std::string& state) {
  // Beginnings of the part after the layer's name; the first match counts.
  static constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"a_", "A/"},
      {"g_", "G/"},
      {"fisher_", "norm/"},
      {"fisher", "norm/average"},
      {"scale_", "scales/"},
      {"scales_", "scales/"},
      {"scales", "scales/average"},
      {"velocity", "parameters/velocity"},
      {"master", "parameters/master"}};
  // Fields that the first probe knew under other names.
  static constexpr std::pair<std::string_view, std::string_view> kFields[] = {
      {"stored_form", "held"}, {"offset", "phase"}, {"offsets_of_interval", "phases_of_interval"}};
  const auto named = [](const std::string& field) {
    for (const auto& [today, first] : kFields)
      if (field == today) return std::string(first);
    return field;
  };
  const std::size_t dot = state.rfind('.');
  if (dot == std::string::npos) return "all/all/" + named(state);
  const std::string layer = state.substr(0, dot), what = state.substr(dot + 1);
  for (const auto& [today, kind] : kKinds)
    if (what.starts_with(today))
      return layer + "/" + std::string(kind) + named(what.substr(today.size()));
  return layer + "/all/" + what;
}

std::string text_of(double x) { return formatted("%.17g", x); }

std::string text_of(ConstTensorView x) {
  std::string text = detail::concat(x.dtype(), " ", x.shape(), " ",
                                    formatted("%016lx", hash_of(x.raw(), x.bytes())));
  const std::int64_t shown = std::min<std::int64_t>(3, x.numel());
  std::array<double, 3> values{};
  Context host;
  if (x.dtype() == DType::i32)
    std::copy_n(x.data<std::int32_t>(), shown, values.begin());
  else
    ops::cast(host, x.reshape({x.numel()}).slice(0, 0, shown), view_of(values.data(), {shown}));
  for (std::int64_t i = 0; i < shown; ++i)
    text += formatted(" %.9g", values[static_cast<std::size_t>(i)]);
  return text;
}

void Writer::add(const std::string& kind, const std::string& configuration, const std::string& item,
                 int rank, const std::string& value) {
  const std::lock_guard lock(mutex_);
  items_[kind + '\t' + configuration + '\t' + item].emplace_back(rank, value);
}

void Writer::print(std::ostream& out) const {
  for (const auto& [item, values] : items_) {
    const auto same = [&](const auto& v) { return v.second == values.front().second; };
    if (values.size() > 1 && std::ranges::all_of(values, same)) {
      out << item << "\tr0 to r" << values.size() - 1 << '\t' << values.front().second << '\n';
      continue;
    }
    std::map<int, std::string> sorted(values.begin(), values.end());
    for (const auto& [rank, value] : sorted) out << item << "\tr" << rank << '\t' << value << '\n';
  }
}

void Log::end() {
  for (const auto& [key, values] : series_) {
    std::string text;  // "1 0*3 1": equal neighbours once
    for (std::size_t i = 0, n = 0; i < values.size(); i += n) {
      for (n = 1; i + n < values.size() && values[i + n] == values[i];) ++n;
      text += (i > 0 ? " " : "") + values[i] + (n > 1 ? detail::concat("*", n) : "");
    }
    writer_.add(key.first, configuration_, key.second, rank_, text);
  }
}

void Log::next(const kfac::StepReport& r, const std::vector<std::string>& layers) {
  for (const kfac::StatisticReport& s : r.statistics) {
    const std::string name =
        layers.at(static_cast<std::size_t>(s.layer)) + "/" + statistic(s.kind) + "/";
    next("decisions", name + "refreshed", text_of(s.refreshed));
    next("decisions", name + "interval", detail::concat(s.interval));
    next("decisions", name + "age", detail::concat(s.age));
    next("decisions", name + "drift", text_of(s.drift));
  }
  const StepAgreement& v = r.agreement;
  next("reports", "vote",
       detail::concat(v.nonfinite_loss, ',', v.nonfinite_gradient, ',', v.nonfinite_statistic, ',',
                      v.data_error, ',', v.numeric_failure, ',', v.stop));
  const auto& stages = r.inverses;
  next("reports", "inverses",
       detail::concat(stages[0], ',', stages[1], ',', stages[2], ',', stages[3], ',', stages[4]));
  const std::pair<const char*, double> fields[] = {
      {"step", static_cast<double>(r.step)},
      {"updated", r.updated},
      {"statistics_refreshed", r.statistics_refreshed},
      {"inverses_refreshed", r.inverses_refreshed},
      {"failed_factors", r.failed_factors},
      {"underflow", static_cast<double>(r.underflow)},
      {"saturated", static_cast<double>(r.saturated)},
      {"damping", r.damping},
      {"kl_factor", r.kl_factor},
      {"momentum", r.momentum},
      {"bytes", static_cast<double>(r.bytes)},
      {"flops", r.flops},
      {"bytes_skipped", static_cast<double>(r.bytes_skipped)},
      {"flops_skipped", r.flops_skipped},
      {"scratch_growths", static_cast<double>(r.scratch_growths)}};
  for (const auto& [name, value] : fields) next("reports", name, text_of(value));
}

void StateWriter::tensor(const std::string& name, StateKind kind, TensorView view) {
  log_.bits(canonical(name), sharing(kind) + " " + text_of(view));
}
void StateWriter::integer(const std::string& name, StateKind kind, std::int64_t& value) {
  log_.bits(canonical(name), sharing(kind) + " " + detail::concat(value));
}
void StateWriter::real(const std::string& name, StateKind kind, double& value) {
  log_.bits(canonical(name), sharing(kind) + " " + text_of(value));
}

}  // namespace dkfac::probe
