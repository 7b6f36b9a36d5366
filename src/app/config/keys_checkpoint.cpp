#include "app/config/table.h"

namespace dkfac::app {

void add_checkpoint_keys(KeyTable& t) {
  t.integer("checkpoint.every_epochs", DKFAC_FIELD(checkpoint.every_epochs), at_least(0),
            "epochs between two checkpoints, and one after the last epoch; 0: none of these");
  t.integer("checkpoint.every_steps", DKFAC_FIELD(checkpoint.every_steps), at_least(0),
            "steps between two checkpoints; 0: none of these");
  t.integer("checkpoint.keep", DKFAC_FIELD(checkpoint.keep), at_least(1),
            "number of newest checkpoints to keep");
}

}  // namespace dkfac::app
