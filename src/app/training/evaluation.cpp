#include "app/training/state.h"

namespace dkfac::app {

namespace {

// Evaluates the current values of the model.
ViewTally evaluate_model(TrainState& s) {
  // Ranks have seen different samples, so their running statistics differ.
  nn::average_buffers(s.ctx, *s.model, *s.comm);
  const TestViews views = test_views(s.now->phase.config);
  if (s.config.run.tta != Tta::none)
    return evaluate_views(s.ctx, *s.model, *s.test_loader, *s.comm, views);
  const Tally plain = evaluate(s.ctx, *s.model, *s.test_loader, *s.comm, {}, loss_of(s.config));
  return {plain, plain};
}

}  // namespace

Evaluation evaluate_epoch(TrainState& s) {
  if (!s.ema) {
    const ViewTally now = evaluate_model(s);
    const bool plain = s.config.run.tta == Tta::none;
    return {now.mean, plain ? std::nullopt : std::optional(now.plain.accuracy())};
  }
  nn::average_buffers(s.ctx, *s.model, *s.comm);
  const TestViews view = plain_view(s.now->phase.config);
  const double plain =
      evaluate(s.ctx, *s.model, *s.test_loader, *s.comm, view, loss_of(s.config)).accuracy();
  const nn::WithEma averages(&*s.ema);
  return {evaluate_model(s).mean, plain};
}

void pass_evaluation(TrainState& s) {
  nn::average_buffers(s.ctx, *s.model, *s.comm);
  if (!s.ema) return;
  const nn::WithEma averages(&*s.ema);
  nn::average_buffers(s.ctx, *s.model, *s.comm);
}

}  // namespace dkfac::app
