#include "app/config/table.h"

namespace dkfac::app {

namespace {

constexpr const char* kType = "optimizer.type";

std::string path_of(std::string_view key) { return "optimizer." + std::string(key); }

/// Calls visit(field[, choices]) for the options with this key, one for each optimizer that
/// has it.
template <class Config, class Visit>
void at_key(Config& config, std::string_view key, const Visit& visit) {
  optim::for_each_optimizer(config.optimizer.options, [&](const auto&, auto& options) {
    optim::for_each_option(options,
                           FieldVisit{[&](auto& field, const FieldInfo& info, auto... choices) {
                             if (!info.help.empty() && key_of(info) == key)
                               visit(field, choices...);
                           }});
  });
}

template <class T>
Value value_of(const T& field) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
    return static_cast<std::int64_t>(field);
  else
    return field;
}
template <class T>
Value value_of(const T& field, NamedValues<T> choices) {
  for (const NamedValue<T>& choice : choices)
    if (choice.value == field) return std::string(choice.name);
  return std::string("?");
}

template <class T>
void set_value(const Value& value, T& field) {
  using Stored =
      std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, std::int64_t, T>;
  field = static_cast<T>(std::get<Stored>(value));
}
template <class T>
void set_value(const Value& value, T& field, NamedValues<T> choices) {
  for (const NamedValue<T>& choice : choices)
    if (choice.name == std::get<std::string>(value)) field = choice.value;
}

/// Returns a key with the type, range and choices of a field.
template <class T>
Key described(const FieldInfo& info, const T&) {
  Key key;
  key.range = info.range;
  if constexpr (std::is_same_v<T, bool>) {
    key.type = KeyType::boolean;
  } else if constexpr (std::is_integral_v<T>) {
    key.type = KeyType::integer;
    key.range.high = std::min(key.range.high, sizeof(T) < 8 ? kMaxCount : kMaxInteger);
  } else if constexpr (std::is_floating_point_v<T>) {
    key.type = KeyType::real;
  }
  return key;
}
template <class T>
Key described(const FieldInfo&, const T&, NamedValues<T> choices) {
  Key key;
  key.type = KeyType::choice;
  for (const NamedValue<T>& choice : choices) key.choices.emplace_back(choice.name);
  return key;
}

Key key_for(const FieldInfo& info, Key made) {
  const std::string key(key_of(info));
  made.path = path_of(key);
  made.help = std::string(info.help);
  made.get = [key](const Config& config) {
    Value value;
    at_key(config, key, [&](const auto&... field) { value = value_of(field...); });
    return value;
  };
  made.set = [key](Config& config, const Value& value) {
    at_key(config, key, [&](auto& field, auto... choices) { set_value(value, field, choices...); });
  };
  return made;
}

/// Adds the options of all optimizers, each key once.
void add_options(KeyTable& t) {
  optim::OptimizerOptions all;
  std::size_t optimizers = 0;
  const std::size_t first = t.keys.size();
  optim::for_each_optimizer(all, [&](const auto& entry, auto& options) {
    ++optimizers;
    optim::for_each_option(
        options, FieldVisit{[&](auto& field, const FieldInfo& info, auto... choices) {
          if (info.help.empty()) return;
          const std::string path = path_of(key_of(info));
          auto at = std::ranges::find(t.keys, path, &Key::path);
          if (at == t.keys.end())
            at = t.keys.insert(at, key_for(info, described(info, field, choices...)));
          if (!info.only.empty())
            at->where(path_of(info.only), {std::string(info.is)});
          else
            at->only.values.emplace_back(entry.name);
        }});
  });
  for (std::size_t i = first; i < t.keys.size(); ++i) {
    Condition& only = t.keys[i].only;
    if (only.values.size() == optimizers)
      only = {};
    else if (only.selector.empty())
      only.selector = kType;
  }
}

void add_type(KeyTable& t) {
  std::vector<std::pair<std::string, optim::OptimizerType>> types;
  optim::OptimizerOptions all;
  optim::for_each_optimizer(
      all, [&](const auto& entry, const auto&) { types.emplace_back(entry.name, entry.type); });
  t.choice<optim::OptimizerType>(kType, DKFAC_FIELD(optimizer.type), std::move(types),
                                 "update rule");
}

void add_parameter_groups(KeyTable& t) {
  const std::string momentum = "optimizer.momentum_schedule";
  t.choice<MomentumSchedule>(
      momentum, DKFAC_FIELD(optimizer.momentum_schedule),
      {{"constant", MomentumSchedule::constant}, {"piecewise", MomentumSchedule::piecewise}},
      "how optimizer.momentum changes over the run");
  t.knots(DKFAC_KEY(optimizer.momentum_knots),
          "[[epoch, momentum], ...], linear in between; each below 1")
      .where(momentum, {"piecewise"});
  t.real(DKFAC_KEY(optimizer.bias_lr_scale), at_least(0),
         "learning rate of biases and BatchNorm shifts in multiples of the weights'");
  t.real(DKFAC_KEY(optimizer.bias_decay_scale), at_least(0),
         "weight decay of biases and BatchNorm shifts in multiples of optimizer.weight_decay");
}

void add_fisher(KeyTable& t) {
  t.choice<Fisher>(DKFAC_KEY(optimizer.fisher),
                   {{"empirical", Fisher::empirical}, {"monte_carlo", Fisher::monte_carlo}},
                   "curvature from the gradients of the training loss, or of labels sampled from "
                   "the model")
      .where(kType, {"kfac"});
}

void add_damping_schedule(KeyTable& t) {
  const std::string schedule = "optimizer.damping_schedule";
  t.choice<DampingSchedule>(schedule, DKFAC_FIELD(optimizer.damping_schedule),
                            {{"constant", DampingSchedule::constant},
                             {"warmup", DampingSchedule::warmup},
                             {"piecewise", DampingSchedule::piecewise}},
                            "how lambda changes over the run")
      .where(kType, {"kfac"});
  t.real(DKFAC_KEY(optimizer.damping_initial), above(0),
         "lambda of the first step, which changes to optimizer.damping")
      .where(schedule, {"warmup"});
  t.integer(DKFAC_KEY(optimizer.damping_warmup_steps), at_least(0), "steps of that change")
      .where(schedule, {"warmup"});
  t.knots(DKFAC_KEY(optimizer.damping_knots), "[[epoch, lambda], ...], linear in between")
      .where(schedule, {"piecewise"});
}

void add_interval_schedule(KeyTable& t) {
  const std::string schedule = "optimizer.interval_schedule";
  t.choice<IntervalSchedule>(
       schedule, DKFAC_FIELD(optimizer.interval_schedule),
       {{"constant", IntervalSchedule::constant}, {"ramp", IntervalSchedule::ramp}},
       "whether the intervals increase from smaller ones")
      .where("optimizer.staleness", {"fixed"});
  t.integer(DKFAC_KEY(optimizer.first_statistics_interval), count_from(1),
            "statistics interval at the first step")
      .where(schedule, {"ramp"});
  t.integer(DKFAC_KEY(optimizer.first_inverse_interval), count_from(1),
            "inverse interval at the first step")
      .where(schedule, {"ramp"});
  t.integer(DKFAC_KEY(optimizer.interval_ramp_steps), at_least(0),
            "steps until both reach their final value")
      .where(schedule, {"ramp"});
}

}  // namespace

void add_optimizer_keys(KeyTable& t) {
  add_type(t);
  add_options(t);
  add_parameter_groups(t);
  add_fisher(t);
  add_damping_schedule(t);
  add_interval_schedule(t);
}

}  // namespace dkfac::app
