#include "app/config_table.h"

namespace dkfac::app {

void add_data_keys(Table& t) {
  t.name("data.name", DKFAC_FIELD(data.name),
         nn::data_names(), "data set");
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

void add_model_keys(Table& t) {
  t.name("model.name", DKFAC_FIELD(model.name), nn::model_names(), "network");
  t.integer("model.batch_norm_groups", DKFAC_FIELD(model.batch_norm_groups), at_least(0),
            "BatchNorm groups of a global batch, over all ranks; 0: one per rank");
}

void add_train_keys(Table& t) {
  t.integer("train.global_batch", DKFAC_FIELD(train.global_batch), at_least(1),
            "samples of a step over all ranks");
  t.real("train.label_smoothing", DKFAC_FIELD(train.label_smoothing), from_to_below(0, 1),
         "weight of the uniform distribution in the targets");
  t.boolean("train.drop_last", DKFAC_FIELD(train.drop_last),
            "leave out a last batch that is not full");
  t.integer("train.max_skipped_steps", DKFAC_FIELD(train.max_skipped_steps), at_least(1),
            "steps in a row without update (a NaN, an infinity) before the run is given up");
}

}  // namespace dkfac::app
