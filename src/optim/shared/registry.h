#pragma once

#include <string>
#include <string_view>

#include "optim/shared/fields.h"

/// The list of all optimizers: an optimizer in it is available in configurations, the program, its
/// benchmarks and their documents.
namespace dkfac::optim {

enum class OptimizerType : std::uint8_t { sgd, lars, adamw, muon, kfac };

/// Options of all optimizers; a run uses those of its type.
struct OptimizerOptions {
  SgdOptions sgd = {};
  LarsOptions lars = {};
  AdamwOptions adamw = {};
  MuonOptions muon = {};
  KfacOptions kfac = {};
};

template <class Make>
struct OptimizerEntry {
  OptimizerType type;
  std::string_view name;
  int states;  ///< Optimizer state per parameter element; of a weight, with muon.
  Make* make;  ///< (communicator, options, device, context)
};

/// Calls visit(entry, options) for each of `all`, const or not.
template <OptionsOf<OptimizerOptions> All, class Visit>
void for_each_optimizer(All& all, Visit&& visit) {
  visit(OptimizerEntry<decltype(make_sgd)>{OptimizerType::sgd, "sgd", 1, make_sgd}, all.sgd);
  visit(OptimizerEntry<decltype(make_lars)>{OptimizerType::lars, "lars", 1, make_lars}, all.lars);
  visit(OptimizerEntry<decltype(make_adamw)>{OptimizerType::adamw, "adamw", 2, make_adamw},
        all.adamw);
  visit(OptimizerEntry<decltype(make_muon)>{OptimizerType::muon, "muon", 1, make_muon}, all.muon);
  const int directions = all.kfac.update == DirectionUpdate::adamw ? 2 : 1;
  visit(OptimizerEntry<decltype(make_kfac)>{OptimizerType::kfac, "kfac", directions, make_kfac},
        all.kfac);
}

/// Visits all fields of one optimizer, including those of the curvature.
template <class Options, class Visit>
void for_each_option(Options& options, Visit&& visit) {
  for_each_field(options, visit);
  if constexpr (OptionsOf<Options, KfacOptions>) for_each_field(options.curvature, visit);
}

/// Calls visit(entry, options) for the optimizer of this type.
template <OptionsOf<OptimizerOptions> All, class Visit>
void visit_optimizer(OptimizerType type, All& all, Visit&& visit) {
  for_each_optimizer(all, [&](const auto& entry, auto& options) {
    if (entry.type == type) visit(entry, options);
  });
}

/// Optimizer state per parameter element, of these options.
[[nodiscard]] inline int states_of(OptimizerType type, const OptimizerOptions& all) {
  int states = 0;
  visit_optimizer(type, all, [&](const auto& entry, const auto&) { states = entry.states; });
  return states;
}

/// Comma-separated names: "sgd,lars,adamw,muon,kfac".
[[nodiscard]] inline std::string optimizer_names() {
  std::string names;
  const OptimizerOptions all;
  for_each_optimizer(all, [&](const auto& entry, const auto&) {
    (names += names.empty() ? "" : ",") += entry.name;
  });
  return names;
}

[[nodiscard]] inline std::string_view name_of(OptimizerType type) {
  std::string_view name = "?";
  const OptimizerOptions all;
  visit_optimizer(type, all, [&](const auto& entry, const auto&) { name = entry.name; });
  return name;
}

}  // namespace dkfac::optim
