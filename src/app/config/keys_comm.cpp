#include "app/config/table.h"

namespace dkfac::app {

void add_comm_keys(KeyTable& t) {
  t.real("run.comm_timeout_s", DKFAC_FIELD(run.comm_timeout_s), above(0),
         "time limit of a collective in seconds");
  t.choice<comm::Check>(
      "run.comm_check", DKFAC_FIELD(run.comm_check),
      {{"hash", comm::Check::hash}, {"full", comm::Check::full}},
      "compare collectives between ranks once per step, or each one before it runs");
  t.integer("run.compare_weights", DKFAC_FIELD(run.compare_weights), at_least(0),
            "steps between two comparisons of the ranks' weights, and one before each checkpoint; "
            "0: none");
  t.boolean("run.require_secret", DKFAC_FIELD(run.require_secret),
            "refuse to connect ranks over a network without a secret (DKFAC_SECRET)");
  t.integer("run.hierarchical", DKFAC_FIELD(run.hierarchical), between(0, 1 << 16),
            "ranks per node for two-level collectives; must divide the ranks; 0: one level");
}

}  // namespace dkfac::app
