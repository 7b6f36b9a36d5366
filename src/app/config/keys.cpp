#include "app/config/keys.h"

#include "app/config/table.h"

namespace dkfac::app {

namespace {

void add_run(KeyTable& t) {
  t.text("run.name", DKFAC_FIELD(run.name), "label in folders and reports; empty: the file's name");
  t.seed("run.seed", DKFAC_FIELD(run.seed), "initial weights and order of the samples");
  t.integer("run.epochs", DKFAC_FIELD(run.epochs), between(1, kMaxCount),
            "passes over the training data");
  t.choice<DType>(
      "run.precision", DKFAC_FIELD(run.precision),
      {{"f32", DType::f32}, {"f64", DType::f64}, {"bf16", DType::bf16}, {"f16", DType::f16}},
      "type of activations and their gradients; with 16 bits, weights and factors are "
      "f32");
  add_device_keys(t);
  t.integer("run.threads", DKFAC_FIELD(run.threads), between(0, 4096),
            "OpenMP threads per rank; 0: this rank's share of the cores");
  t.integer("run.eval_batch", DKFAC_FIELD(run.eval_batch), between(1, 1 << 24),
            "samples of an evaluation batch over all ranks");
  t.integer(
      "run.eval_every", DKFAC_FIELD(run.eval_every), between(0, kMaxCount),
      "epochs between two evaluations, and one after the last epoch; 0: none of these, 'dkfac "
      "eval --watch' evaluates checkpoints");
  t.real("run.target", DKFAC_FIELD(run.target), between(0, 1),
         "test accuracy whose first epoch is recorded; 0: none");
  t.real("run.target_top5", DKFAC_FIELD(run.target_top5), between(0, 1),
         "top-5 test accuracy that this epoch has to reach too; 0: none");
  t.real("run.target_loss", DKFAC_FIELD(run.target_loss), at_least(0),
         "test loss at or below which an epoch has to end too; 0: none");
  t.real("run.price_per_hour", DKFAC_FIELD(run.price_per_hour), at_least(0),
         "dollars per hour of all machines together, from which a run computes its cost; 0: "
         "unknown");
  t.choice<Tta>(
       "run.tta", DKFAC_FIELD(run.tta),
       {{"none", Tta::none},
        {"flip", Tta::flip},
        {"five_crops", Tta::five_crops},
        {"ten_crops", Tta::ten_crops}},
       "evaluate the mean of the logits of each image and its flip (also: true), or of the "
       "centre and corners of photographs, with ten_crops and their flips")
      .or_boolean("none", "flip");
  t.integer("run.log_interval", DKFAC_FIELD(run.log_interval), at_least(0),
            "steps between two lines of steps in metrics.jsonl; 0: none");
  t.boolean("run.trace", DKFAC_FIELD(run.trace),
            "write trace.json, when each activity of each step began and ended");
}

void add_lr(KeyTable& t) {
  const std::string schedule = "lr.schedule";
  t.choice<LrSchedule>(schedule, DKFAC_FIELD(lr.schedule),
                       {{"polynomial", LrSchedule::polynomial},
                        {"piecewise", LrSchedule::piecewise},
                        {"constant", LrSchedule::constant},
                        {"step", LrSchedule::step},
                        {"cosine", LrSchedule::cosine}},
                       "shape of the learning rate over epochs");
  t.real("lr.lr", DKFAC_FIELD(lr.lr), at_least(0), "learning rate at its full height")
      .where(schedule, {"polynomial", "constant", "cosine"});
  t.real("lr.start", DKFAC_FIELD(lr.start), at_least(0), "epoch where the decay starts")
      .where(schedule, {"polynomial", "cosine"});
  t.real("lr.end", DKFAC_FIELD(lr.end), at_least(0),
         "epoch where it ends; 0: run.epochs, or the end of the phase that gives the schedule")
      .where(schedule, {"polynomial", "cosine"});
  t.real("lr.final", DKFAC_FIELD(lr.last), at_least(0), "learning rate from its end on")
      .where(schedule, {"polynomial", "cosine"});
  t.real("lr.power", DKFAC_FIELD(lr.power), above(0), "exponent of the decay")
      .where(schedule, {"polynomial"});
  t.knots("lr.knots", DKFAC_FIELD(lr.knots),
          "[[epoch, lr], ...], linear in between; step: each until the next")
      .where(schedule, {"piecewise", "step"});
  t.real("lr.warmup_epochs", DKFAC_FIELD(lr.warmup_epochs), at_least(0),
         "epochs over which the rate rises to its schedule");
  t.real("lr.warmup_first", DKFAC_FIELD(lr.warmup_first), between(0, 1),
         "fraction of the schedule at the first step of the warm-up");
  t.integer("lr.base_batch", DKFAC_FIELD(lr.base_batch), at_least(0),
            "all rates are for this batch and scale with train.global_batch; 0: as given");
  t.choice<BatchScaling>("lr.batch_scaling", DKFAC_FIELD(lr.batch_scaling),
                         {{"linear", BatchScaling::linear}, {"sqrt", BatchScaling::sqrt}},
                         "with base_batch, rates scale with the batch or with its square root");
}

}  // namespace

const std::vector<Key>& config_keys() {
  static const std::vector<Key> keys = [] {
    KeyTable table;
    add_run(table);
    add_comm_keys(table);
    add_data_keys(table);
    add_augment_keys(table);
    add_model_keys(table);
    add_train_keys(table);
    add_optimizer_keys(table);
    add_lr(table);
    add_checkpoint_keys(table);
    return std::move(table.keys);
  }();
  return keys;
}

}  // namespace dkfac::app
