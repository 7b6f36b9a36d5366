#include "app/config_keys.h"

#include <type_traits>

namespace dkfac::app {

namespace {

constexpr double kMaxInteger = 9007199254740992.0;  // 2^53: exact as a double.

Range at_least(double low) { return {.low = low}; }
Range above(double low) { return {.low = low, .open_low = true}; }
Range between(double low, double high) { return {.low = low, .high = high}; }
Range from_to_below(double low, double high) {
  return {.low = low, .high = high, .open_high = true};
}
Range above_up_to(double low, double high) { return {.low = low, .high = high, .open_low = true}; }

/// The table under construction. A field is a generic lambda that gives the member of a Config.
class Table {
 public:
  template <class Field>
  Key& boolean(std::string path, Field field, std::string help) {
    return plain<bool>(std::move(path), KeyType::boolean, {}, field, std::move(help));
  }
  template <class Field>
  Key& integer(std::string path, Field field, Range range, std::string help) {
    range.high = std::min(range.high, kMaxInteger);
    return plain<std::int64_t>(std::move(path), KeyType::integer, range, field, std::move(help));
  }
  template <class Field>
  Key& real(std::string path, Field field, Range range, std::string help) {
    return plain<double>(std::move(path), KeyType::real, range, field, std::move(help));
  }
  template <class Field>
  Key& text(std::string path, Field field, std::string help) {
    return plain<std::string>(std::move(path), KeyType::text, {}, field, std::move(help));
  }
  template <class Field>
  Key& knots(std::string path, Field field, std::string help) {
    return plain<Knots>(std::move(path), KeyType::knots, at_least(0), field, std::move(help));
  }
  /// A name out of a list, kept as text.
  template <class Field>
  Key& name(std::string path, Field field, std::vector<std::string> choices, std::string help) {
    Key& key = plain<std::string>(std::move(path), KeyType::choice, {}, field, std::move(help));
    key.choices = std::move(choices);
    return key;
  }
  /// A name that stands for a value of type T.
  template <class T, class Field>
  Key& choice(std::string path, Field field, std::vector<std::pair<std::string, T>> choices,
              std::string help) {
    Key key{.path = std::move(path), .type = KeyType::choice, .help = std::move(help)};
    for (const auto& [name, value] : choices) key.choices.push_back(name);
    key.get = [field, choices](const Config& config) -> Value {
      for (const auto& [name, value] : choices)
        if (value == field(config)) return name;
      return std::string("?");
    };
    key.set = [field, choices](Config& config, const Value& v) {
      for (const auto& [name, value] : choices)
        if (name == std::get<std::string>(v)) field(config) = value;
    };
    keys.push_back(std::move(key));
    return keys.back();
  }

  std::vector<Key> keys;

 private:
  template <class Stored, class Field>
  Key& plain(std::string path, KeyType type, Range range, Field field, std::string help) {
    Key key{.path = std::move(path), .type = type, .range = range, .help = std::move(help)};
    key.get = [field](const Config& c) -> Value { return static_cast<Stored>(field(c)); };
    key.set = [field](Config& c, const Value& v) {
      using Member = std::remove_reference_t<decltype(field(c))>;
      field(c) = static_cast<Member>(std::get<Stored>(v));
    };
    keys.push_back(std::move(key));
    return keys.back();
  }
};

#define DKFAC_FIELD(member) \
  [](auto& c) -> auto& { return c.member; }

void add_run(Table& t) {
  t.text("run.name", DKFAC_FIELD(run.name), "label in folders and reports; empty: the file's name");
  t.integer("run.seed", DKFAC_FIELD(run.seed), at_least(0),
            "initial weights and order of the samples");
  t.integer("run.epochs", DKFAC_FIELD(run.epochs), at_least(1), "passes over the training data");
  t.choice<DType>("run.precision", DKFAC_FIELD(run.precision),
                  {{"f32", DType::f32}, {"f64", DType::f64}},
                  "type of weights, activations, factors");
  t.integer("run.threads", DKFAC_FIELD(run.threads), between(0, 4096),
            "OpenMP threads per rank; 0: this rank's share of the cores");
  t.integer("run.eval_batch", DKFAC_FIELD(run.eval_batch), between(1, 1 << 24),
            "samples of an evaluation batch over all ranks");
  t.real("run.target", DKFAC_FIELD(run.target), between(0, 1),
         "test accuracy whose first epoch is recorded; 0: none");
  t.integer("run.log_interval", DKFAC_FIELD(run.log_interval), at_least(0),
            "steps between two step records in metrics.jsonl; 0: none");
  t.real("run.comm_timeout_s", DKFAC_FIELD(run.comm_timeout_s), above(0),
         "seconds that a collective may take");
  t.choice<comm::Check>("run.comm_check", DKFAC_FIELD(run.comm_check),
                        {{"hash", comm::Check::hash}, {"full", comm::Check::full}},
                        "compare collectives over ranks once a step, or each before it runs");
}

void add_data(Table& t) {
  t.name("data.name", DKFAC_FIELD(data.name),
         {"fashion-mnist-small", "fashion-mnist", "mnist", "synthetic"}, "data set");
  t.text("data.path", DKFAC_FIELD(data.path),
         "its folder; empty: $DKFAC_DATA/<name>, then our own copy");
  t.integer("data.hold_out", DKFAC_FIELD(data.hold_out), at_least(0),
            "test on this many training samples instead of the test set; 0: no");
  t.boolean("data.shuffle", DKFAC_FIELD(data.shuffle), "a new order each epoch");
  const auto synthetic = [&](const char* path, auto field, Range range, const char* help) {
    t.integer(path, field, range, help).where("data.name", {"synthetic"});
  };
  synthetic("data.synthetic_train", DKFAC_FIELD(data.synthetic_train), between(1, 1 << 24),
            "training samples");
  synthetic("data.synthetic_test", DKFAC_FIELD(data.synthetic_test), between(1, 1 << 24),
            "test samples");
  synthetic("data.synthetic_size", DKFAC_FIELD(data.synthetic_size), between(1, 4096),
            "height and width in pixels");
  synthetic("data.synthetic_channels", DKFAC_FIELD(data.synthetic_channels), between(1, 64),
            "channels");
  synthetic("data.synthetic_classes", DKFAC_FIELD(data.synthetic_classes), between(2, 1000),
            "classes");
  synthetic("data.synthetic_seed", DKFAC_FIELD(data.synthetic_seed), at_least(0), "which patterns");
}

void add_model_and_train(Table& t) {
  t.name("model.name", DKFAC_FIELD(model.name), nn::model_names(), "network");
  t.integer("model.batch_norm_groups", DKFAC_FIELD(model.batch_norm_groups), at_least(0),
            "BatchNorm groups of a global batch, over all ranks; 0: one per rank");
  t.integer("train.global_batch", DKFAC_FIELD(train.global_batch), at_least(1),
            "samples of a step over all ranks");
  t.real("train.label_smoothing", DKFAC_FIELD(train.label_smoothing), from_to_below(0, 1),
         "weight of the uniform distribution in the targets");
  t.boolean("train.drop_last", DKFAC_FIELD(train.drop_last),
            "leave out a last batch that is not full");
  t.integer("train.max_skipped_steps", DKFAC_FIELD(train.max_skipped_steps), at_least(1),
            "steps in a row without update (a NaN, an infinity) before the run is given up");
}

void add_optimizer(Table& t) {
  const std::string type = "optimizer.type";
  t.choice<OptimizerType>(
      type, DKFAC_FIELD(optimizer.type),
      {{"sgd", OptimizerType::sgd}, {"lars", OptimizerType::lars}, {"kfac", OptimizerType::kfac}},
      "update rule");
  t.real("optimizer.momentum", DKFAC_FIELD(optimizer.momentum), from_to_below(0, 1),
         "share of the last update that is kept");
  t.boolean("optimizer.nesterov", DKFAC_FIELD(optimizer.nesterov), "look ahead along the momentum")
      .where(type, {"sgd", "lars"});
  t.real("optimizer.weight_decay", DKFAC_FIELD(optimizer.weight_decay), at_least(0),
         "of weights, not of BatchNorm and biases; decoupled for kfac");
  t.boolean("optimizer.momentum_correction", DKFAC_FIELD(optimizer.momentum_correction),
            "rescale the momentum when the learning rate changes")
      .where(type, {"sgd"});
  t.real("optimizer.eta", DKFAC_FIELD(optimizer.eta), above(0), "trust coefficient")
      .where(type, {"lars"});
  t.real("optimizer.epsilon", DKFAC_FIELD(optimizer.epsilon), at_least(0),
         "added to the denominator of the trust ratio")
      .where(type, {"lars"});
  t.boolean("optimizer.overlap", DKFAC_FIELD(optimizer.overlap),
            "communicate while forward and backward run");
  t.integer("optimizer.bucket_bytes", DKFAC_FIELD(optimizer.bucket_bytes), at_least(1),
            "a reduction starts once about this much is waiting");
}

using kfac::BatchNormFisher;
using kfac::InverseMethod;
using kfac::MomentumRule;
using kfac::Rescale;

void add_curvature(Table& t) {
  t.real("optimizer.damping", DKFAC_FIELD(optimizer.curvature.damping), above(0),
         "lambda of (F + lambda I)");
  t.real("optimizer.bn_damping", DKFAC_FIELD(optimizer.curvature.bn_damping), above(0),
         "factor of lambda for BatchNorm");
  t.real("optimizer.new_weight", DKFAC_FIELD(optimizer.curvature.new_weight), above_up_to(0, 1),
         "weight of the newest statistic in its running average");
  t.integer("optimizer.statistics_interval", DKFAC_FIELD(optimizer.curvature.statistics_interval),
            between(1, 1 << 30), "steps between two refreshes of the statistics");
  t.integer("optimizer.inverse_interval", DKFAC_FIELD(optimizer.curvature.inverse_interval),
            between(1, 1 << 30), "steps between two refreshes of the inverses");
  t.choice<BatchNormFisher>(
      "optimizer.batch_norm", DKFAC_FIELD(optimizer.curvature.batch_norm),
      {{"diagonal", BatchNormFisher::diagonal}, {"unit_wise", BatchNormFisher::unit_wise}},
      "curvature of a BatchNorm");
  t.choice<InverseMethod>("optimizer.inverse", DKFAC_FIELD(optimizer.curvature.inverse),
                          {{"cholesky", InverseMethod::cholesky}, {"eigen", InverseMethod::eigen}},
                          "inverses of damped factors, or damped eigenvalues");
  t.choice<std::optional<DType>>("optimizer.operand", DKFAC_FIELD(optimizer.curvature.operand),
                                 {{"data", std::nullopt},
                                  {"f64", DType::f64},
                                  {"f32", DType::f32},
                                  {"bf16", DType::bf16},
                                  {"f16", DType::f16}},
                                 "factor products round their operands to this");
  t.integer("optimizer.max_failed_refreshes", DKFAC_FIELD(optimizer.curvature.max_failed_refreshes),
            between(0, 1 << 30), "failed inversions of a factor in a row that are survived");
}

void add_kfac(Table& t) {
  const std::size_t first = t.keys.size();
  add_curvature(t);
  t.choice<MomentumRule>("optimizer.momentum_rule", DKFAC_FIELD(optimizer.momentum_rule),
                         {{"constant", MomentumRule::constant},
                          {"corrected", MomentumRule::corrected},
                          {"paper", MomentumRule::paper}},
                         "how the momentum follows the learning rate");
  t.choice<Rescale>(
      "optimizer.rescale", DKFAC_FIELD(optimizer.rescale),
      {{"off", Rescale::off}, {"always", Rescale::always}, {"shrink", Rescale::shrink}},
      "weights to the norm sqrt(2 * outputs) after each update");
  for (std::size_t i = first; i < t.keys.size(); ++i) t.keys[i].where("optimizer.type", {"kfac"});
}

void add_lr(Table& t) {
  const std::string schedule = "lr.schedule";
  t.choice<LrSchedule>(schedule, DKFAC_FIELD(lr.schedule),
                       {{"polynomial", LrSchedule::polynomial},
                        {"piecewise", LrSchedule::piecewise},
                        {"constant", LrSchedule::constant}},
                       "shape of the learning rate over epochs");
  t.real("lr.lr", DKFAC_FIELD(lr.lr), at_least(0), "learning rate at its full height")
      .where(schedule, {"polynomial", "constant"});
  t.real("lr.start", DKFAC_FIELD(lr.start), at_least(0), "epoch where the decay starts")
      .where(schedule, {"polynomial"});
  t.real("lr.end", DKFAC_FIELD(lr.end), at_least(0), "epoch where it reaches 0; 0: run.epochs")
      .where(schedule, {"polynomial"});
  t.real("lr.power", DKFAC_FIELD(lr.power), above(0), "exponent of the decay")
      .where(schedule, {"polynomial"});
  t.knots("lr.knots", DKFAC_FIELD(lr.knots), "[[epoch, lr], ...], straight lines between")
      .where(schedule, {"piecewise"});
  t.real("lr.warmup_epochs", DKFAC_FIELD(lr.warmup_epochs), at_least(0),
         "epochs over which the rate rises to its schedule");
  t.real("lr.warmup_first", DKFAC_FIELD(lr.warmup_first), between(0, 1),
         "share of the schedule at the first step of the warm-up");
}

#undef DKFAC_FIELD

}  // namespace

const std::vector<Key>& config_keys() {
  static const std::vector<Key> keys = [] {
    Table table;
    add_run(table);
    add_data(table);
    add_model_and_train(table);
    add_optimizer(table);
    add_kfac(table);
    add_lr(table);
    return std::move(table.keys);
  }();
  return keys;
}

}  // namespace dkfac::app
