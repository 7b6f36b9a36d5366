#include "app/bench/probe.h"

#include "dkfac/data/loader.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"

#include "app/run/memory_check.h"

namespace dkfac::app::bench {

LayerId Probe::add_layer(std::string name, LayerSpec spec, optim::LayerParams) {
  layers_.push_back({std::move(name), std::move(spec)});
  return static_cast<LayerId>(layers_.size() - 1);
}

void Probe::record_input(LayerId layer, ConstTensorView input, Stream, RecordScale) {
  notify(input_, layer, input);
}

void Probe::record_grad_output(LayerId layer, ConstTensorView grad_output, Stream, RecordScale) {
  notify(grad_output_, layer, grad_output);
}

void Probe::notify(const Callback& callback, LayerId layer, ConstTensorView data) const {
  const Entry& entry = layers_.at(static_cast<std::size_t>(layer));
  if (callback && dkfac::has_factors(entry.spec)) callback({entry.name, entry.spec, data});
}

void run_probe(const BenchCommand& command, Context& ctx, Probe::Callback input,
               Probe::Callback grad_output) {
  const data::DataSplits data = bench_data(command, command.batch);
  const Config config = bench_config(command, "kfac", 1);
  check_network_memory(model_options(config, data.train, 1));
  const auto model = nn::make_model(ctx, model_options(config, data.train, 1));
  Probe probe(std::move(input), std::move(grad_output));
  const nn::OptimizerAttachment attachment(*model, probe);
  data::Loader loader(data.train, data::normalization_of(data.train),
                      {.count = command.batch, .global_batch = command.batch, .shuffle = false}, 0,
                      1, master_type(config));
  loader.start_epoch(0);
  data::Batch batch;
  DKFAC_CHECK(loader.next(batch), "[bench] no batch of ", command.batch, " samples");
  const ConstTensorView logits = model->forward(ctx, batch.images, nn::Mode::train);
  Tensor grad = Tensor::empty(ctx, logits.shape(), logits.dtype());
  (void)nn::softmax_cross_entropy(ctx, logits, batch.labels, 0,
                                  1.0 / static_cast<double>(command.batch), grad);
  model->backward(ctx, grad);
}

}  // namespace dkfac::app::bench
