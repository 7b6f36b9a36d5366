#include "app/config/keys.h"

#include "app/config/table.h"

namespace dkfac::app {

namespace {

void add_device(KeyTable& t) {
  t.text(DKFAC_KEY(run.device),
         "\"cpu\"; \"cuda\": each rank of a machine uses the next GPU; \"cuda:0\", ...: that GPU");
  t.boolean(DKFAC_KEY(run.tf32),
            "on a GPU, round operands of f32 products to TF32, which is faster");
  t.choice<bool>(
      DKFAC_KEY(run.graphs), {{"auto", true}, {"off", false}},
      "on a GPU, launch the passes of a step as one CUDA graph, statistics included, and "
      "K-FAC's preconditioning as another, where they can be recorded");
}

void add_run(KeyTable& t) {
  t.text(DKFAC_KEY(run.name), "label in folders and reports; empty: the file's name");
  t.seed(DKFAC_KEY(run.seed), "initial weights and order of the samples");
  t.integer(DKFAC_KEY(run.epochs), between(1, kMaxCount), "passes over the training data");
  t.choice<DType>(
      DKFAC_KEY(run.precision),
      {{"f32", DType::f32}, {"f64", DType::f64}, {"bf16", DType::bf16}, {"f16", DType::f16}},
      "type of activations and their gradients; with 16 bits, weights and factors are "
      "f32");
  add_device(t);
  t.integer(DKFAC_KEY(run.threads), between(0, 4096),
            "OpenMP threads per rank; 0: this rank's share of the cores");
  t.integer(DKFAC_KEY(run.eval_batch), between(1, 1 << 24),
            "samples of an evaluation batch over all ranks");
  t.integer(
      DKFAC_KEY(run.eval_every), between(0, kMaxCount),
      "epochs between two evaluations, and one after the last epoch; 0: none of these, 'dkfac "
      "eval --watch' evaluates checkpoints");
  t.real(DKFAC_KEY(run.target), between(0, 1),
         "test accuracy whose first epoch is recorded; 0: none");
  t.real(DKFAC_KEY(run.target_top5), between(0, 1),
         "top-5 test accuracy that this epoch has to reach too; 0: none");
  t.real(DKFAC_KEY(run.target_loss), at_least(0),
         "test loss at or below which an epoch has to end too; 0: none");
  t.real(DKFAC_KEY(run.price_per_hour), at_least(0),
         "dollars per hour of all machines together, from which a run computes its cost; 0: "
         "unknown");
  t.choice<Tta>(
       DKFAC_KEY(run.tta),
       {{"none", Tta::none},
        {"flip", Tta::flip},
        {"five_crops", Tta::five_crops},
        {"ten_crops", Tta::ten_crops}},
       "evaluate the mean of the logits of each image and its flip (also: true), or of the "
       "centre and corners of photographs, with ten_crops and their flips")
      .or_boolean("none", "flip");
  t.integer(DKFAC_KEY(run.log_interval), at_least(0),
            "steps between two lines of steps in metrics.jsonl; 0: none");
  t.boolean(DKFAC_KEY(run.trace),
            "write trace.json, when each activity of each step began and ended");
}

void add_comm(KeyTable& t) {
  t.real(DKFAC_KEY(run.comm_timeout_s), above(0), "time limit of a collective in seconds");
  t.choice<comm::Check>(
      DKFAC_KEY(run.comm_check), {{"hash", comm::Check::hash}, {"full", comm::Check::full}},
      "compare collectives between ranks once per step, or each one before it runs");
  t.integer(DKFAC_KEY(run.compare_weights), at_least(0),
            "steps between two comparisons of the ranks' weights, and one before each checkpoint; "
            "0: none");
  t.boolean(DKFAC_KEY(run.require_secret),
            "refuse to connect ranks over a network without a secret (DKFAC_SECRET)");
  t.integer(DKFAC_KEY(run.hierarchical), between(0, 1 << 16),
            "ranks per node for two-level collectives; must divide the ranks; 0: one level");
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
  t.real(DKFAC_KEY(lr.lr), at_least(0), "learning rate at its full height")
      .where(schedule, {"polynomial", "constant", "cosine"});
  t.real(DKFAC_KEY(lr.start), at_least(0), "epoch where the decay starts")
      .where(schedule, {"polynomial", "cosine"});
  t.real(DKFAC_KEY(lr.end), at_least(0),
         "epoch where it ends; 0: run.epochs, or the end of the phase that gives the schedule")
      .where(schedule, {"polynomial", "cosine"});
  t.real("lr.final", DKFAC_FIELD(lr.last), at_least(0), "learning rate from its end on")
      .where(schedule, {"polynomial", "cosine"});
  t.real(DKFAC_KEY(lr.power), above(0), "exponent of the decay").where(schedule, {"polynomial"});
  t.knots(DKFAC_KEY(lr.knots), "[[epoch, lr], ...], linear in between; step: each until the next")
      .where(schedule, {"piecewise", "step"});
  t.real(DKFAC_KEY(lr.warmup_epochs), at_least(0),
         "epochs over which the rate rises to its schedule");
  t.real(DKFAC_KEY(lr.warmup_first), between(0, 1),
         "fraction of the schedule at the first step of the warm-up");
  t.integer(DKFAC_KEY(lr.base_batch), at_least(0),
            "all rates are for this batch and scale with train.global_batch; 0: as given");
  t.choice<BatchScaling>(DKFAC_KEY(lr.batch_scaling),
                         {{"linear", BatchScaling::linear}, {"sqrt", BatchScaling::sqrt}},
                         "with base_batch, rates scale with the batch or with its square root");
}

void add_checkpoint(KeyTable& t) {
  t.integer(DKFAC_KEY(checkpoint.every_epochs), at_least(0),
            "epochs between two checkpoints, and one after the last epoch; 0: none of these");
  t.integer(DKFAC_KEY(checkpoint.every_steps), at_least(0),
            "steps between two checkpoints; 0: none of these");
  t.integer(DKFAC_KEY(checkpoint.keep), at_least(1), "number of newest checkpoints to keep");
}

}  // namespace

const std::vector<Key>& config_keys() {
  static const std::vector<Key> keys = [] {
    KeyTable table;
    add_run(table);
    add_comm(table);
    add_data_keys(table);
    add_augment_keys(table);
    add_model_keys(table);
    add_train_keys(table);
    add_optimizer_keys(table);
    add_lr(table);
    add_checkpoint(table);
    return std::move(table.keys);
  }();
  return keys;
}

}  // namespace dkfac::app
