#pragma once

#include "dkfac/optim/optimizer.h"

#include "kfac/shared/fields.h"

/// Field lists of the optimizers' options (core/shared/fields.h). Options with the same meaning
/// have the same key in all of them.
namespace dkfac::optim {

inline constexpr NamedValue<MomentumRule> kMomentumRules[] = {
    {"constant", MomentumRule::constant},
    {"corrected", MomentumRule::corrected},
    {"paper", MomentumRule::paper}};
inline constexpr NamedValue<Rescale> kRescales[] = {
    {"off", Rescale::off}, {"always", Rescale::always}, {"shrink", Rescale::shrink}};

inline constexpr NamedValue<DirectionUpdate> kDirectionUpdates[] = {
    {"momentum", DirectionUpdate::momentum}, {"adamw", DirectionUpdate::adamw}};

inline constexpr NamedValue<LarsForm> kLarsForms[] = {{"mlperf", LarsForm::mlperf},
                                                      {"larc", LarsForm::larc},
                                                      {"joint_norm", LarsForm::joint_norm},
                                                      {"clipped", LarsForm::clipped}};

inline constexpr NamedValue<MuonScale> kMuonScales[] = {
    {"original", MuonScale::original}, {"match_rms_adamw", MuonScale::match_rms_adamw}};

/// "?" for a value without a name.
template <class T, std::size_t n>
[[nodiscard]] constexpr std::string_view name_of(const NamedValue<T> (&choices)[n], T value) {
  for (const NamedValue<T>& choice : choices)
    if (choice.value == value) return choice.name;
  return "?";
}

inline constexpr FieldInfo kMomentum{
    "momentum", "fraction of the last update that is kept; beta1 of adamw", from_to_below(0, 1)};
inline constexpr FieldInfo kNesterov{"nesterov", "look ahead along the momentum"};
inline constexpr FieldInfo kWeightDecay{
    "weight_decay", "of weights, not of BatchNorm scales; decoupled for adamw, muon and kfac",
    at_least(0)};
inline constexpr FieldInfo kBeta2{"beta2", "fraction of the last second moment that is kept",
                                  from_to_below(0, 1)};
inline constexpr FieldInfo kAdamEpsilon{.name = "epsilon",
                                        .help = "added to the root of the second moment",
                                        .range = above(0),
                                        .key = "adam_epsilon"};

template <OptionsOf<SgdOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [momentum, nesterov, weight_decay, momentum_correction, loss_reduction, communication] =
      options;
  visit(momentum, kMomentum);
  visit(nesterov, kNesterov);
  visit(weight_decay, kWeightDecay);
  visit(momentum_correction,
        {"momentum_correction", "rescale the momentum when the learning rate changes"});
  for_each_field(communication, visit);
  visit(loss_reduction, {"loss_reduction"}, NamedValues<LossReduction>(kLossReductions));
}

template <OptionsOf<LarsOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [form, momentum, nesterov, weight_decay, eta, epsilon, min_trust, max_trust, loss_reduction,
         communication] = options;
  visit(form,
        {.name = "form",
         .help = "MLPerf's; NVIDIA's LARC; with the norm of gradient plus decay; limited ratio",
         .key = "lars_form"},
        NamedValues<LarsForm>(kLarsForms));
  visit(momentum, kMomentum);
  visit(nesterov, kNesterov);
  visit(weight_decay, kWeightDecay);
  visit(eta, {"eta", "trust coefficient", above(0)});
  visit(epsilon, {"epsilon", "added to the denominator of the trust ratio", at_least(0)});
  visit(min_trust, {.name = "min_trust",
                    .help = "smallest trust ratio",
                    .range = above(0),
                    .only = "lars_form",
                    .is = "clipped"});
  visit(max_trust, {.name = "max_trust",
                    .help = "largest trust ratio",
                    .range = above(0),
                    .only = "lars_form",
                    .is = "clipped"});
  for_each_field(communication, visit);
  visit(loss_reduction, {"loss_reduction"}, NamedValues<LossReduction>(kLossReductions));
}

template <OptionsOf<AdamwOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [beta1, beta2, epsilon, weight_decay, loss_reduction, communication] = options;
  visit(beta1,
        {.name = "beta1", .help = kMomentum.help, .range = kMomentum.range, .key = kMomentum.name});
  visit(beta2, kBeta2);
  visit(epsilon, kAdamEpsilon);
  visit(weight_decay, kWeightDecay);
  for_each_field(communication, visit);
  visit(loss_reduction, {"loss_reduction"}, NamedValues<LossReduction>(kLossReductions));
}

template <OptionsOf<MuonOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [momentum, nesterov, weight_decay, scale, adam_rate, beta1, beta2, epsilon, loss_reduction,
         communication] = options;
  visit(momentum, kMomentum);
  visit(nesterov, kNesterov);
  visit(weight_decay, kWeightDecay);
  visit(scale,
        {.name = "scale",
         .help = "factor of a direction: sqrt(max(1, rows/columns)); 0.2 sqrt(max(rows, columns))",
         .key = "muon_scale"},
        NamedValues<MuonScale>(kMuonScales));
  visit(adam_rate,
        {"adam_rate", "AdamW's learning rate in multiples of that of matrices", at_least(0)});
  visit(beta1, {.name = "beta1",
                .help = "fraction of the last first moment that AdamW keeps",
                .range = kMomentum.range,
                .key = "adam_beta1"});
  visit(beta2, kBeta2);
  visit(epsilon, kAdamEpsilon);
  for_each_field(communication, visit);
  visit(loss_reduction, {"loss_reduction"}, NamedValues<LossReduction>(kLossReductions));
}

/// Fields of KfacOptions without those of the curvature.
template <OptionsOf<KfacOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [curvature, update, momentum, momentum_rule, initial_lr, rescale, beta1, beta2, epsilon,
         weight_decay] = options;
  visit(update, {"update", "what updates the weights with preconditioned gradients"},
        NamedValues<DirectionUpdate>(kDirectionUpdates));
  visit(momentum, kMomentum);
  visit(weight_decay, kWeightDecay);
  visit(momentum_rule,
        {"momentum_rule", "how the momentum follows the learning rate", {}, "update", "momentum"},
        NamedValues<MomentumRule>(kMomentumRules));
  visit(rescale,
        {"rescale",
         "weights to the norm sqrt(2 * outputs) after each update",
         {},
         "update",
         "momentum"},
        NamedValues<Rescale>(kRescales));
  visit(initial_lr, {.name = "initial_lr", .range = at_least(0)});
  // A program has one key for momentum and beta1 of all optimizers.
  visit(beta1, {.name = "beta1", .range = kMomentum.range});
  visit(beta2, {.name = "beta2",
                .help = kBeta2.help,
                .range = kBeta2.range,
                .only = "update",
                .is = "adamw",
                .key = "adamw_beta2"});
  visit(epsilon, {.name = "epsilon",
                  .help = kAdamEpsilon.help,
                  .range = kAdamEpsilon.range,
                  .only = "update",
                  .is = "adamw",
                  .key = "adamw_epsilon"});
}

}  // namespace dkfac::optim
