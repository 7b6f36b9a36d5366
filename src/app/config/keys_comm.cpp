#include "app/config/table.h"

namespace dkfac::app {

void add_comm_keys(KeyTable& t) {
  t.real("run.comm_timeout_s", DKFAC_FIELD(run.comm_timeout_s), above(0),
         "seconds that a collective may take");
  t.choice<comm::Check>("run.comm_check", DKFAC_FIELD(run.comm_check),
                        {{"hash", comm::Check::hash}, {"full", comm::Check::full}},
                        "compare collectives over ranks once a step, or each before it runs");
  t.integer("run.hierarchical", DKFAC_FIELD(run.hierarchical), between(0, 1 << 16),
            "ranks per node for collectives in two levels; has to divide the ranks; 0: one level");
}

}  // namespace dkfac::app
