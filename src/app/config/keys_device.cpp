#include "app/config/table.h"

namespace dkfac::app {

void add_device_keys(KeyTable& t) {
  t.text("run.device", DKFAC_FIELD(run.device),
         "\"cpu\"; \"cuda\": each rank of a machine uses the next GPU; \"cuda:0\", ...: that GPU");
  t.boolean("run.tf32", DKFAC_FIELD(run.tf32),
            "on a GPU, round operands of f32 products to TF32, which is faster");
  t.choice<bool>(
      "run.graphs", DKFAC_FIELD(run.graphs), {{"auto", true}, {"off", false}},
      "on a GPU, launch the passes of a step as one CUDA graph, statistics included, and "
      "K-FAC's preconditioning as another, where they can be recorded");
}

}  // namespace dkfac::app
