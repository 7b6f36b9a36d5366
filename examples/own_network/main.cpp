// A network of layers of dkfac and one written here, trained by K-FAC, LARS, SGD or AdamW on any
// number of ranks, with checkpoints. Ranks are two threads, or the processes started by mpirun,
// srun or torchrun. Fails unless the layer's gradients are right, every optimizer lowers the loss,
// all ranks have equal weights, and a run that goes on from a checkpoint has the bits of the one
// that was not stopped.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <sstream>

#include "dkfac/comm/in_process.h"
#include "dkfac/comm/launch.h"
#include "dkfac/data/loader.h"
#include "dkfac/nn/gradient_check.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"

#include "checkpoint.h"
#include "prelu.h"

using namespace dkfac;
using Comm = std::shared_ptr<comm::Communicator>;

std::unique_ptr<nn::Model> make_network(Context& ctx, const data::Dataset& images) {
  const nn::ConvOptions conv = nn::ConvOptions::square(3, {.pad = 1, .bias = false});
  auto net = std::make_unique<nn::Sequential>();
  net->add<nn::Conv2d>("conv1", images.channels, 8, conv)
      .add<nn::BatchNorm2d>("bn1", 8)
      .add<PRelu>("act1", 8)
      .add<nn::Pool2d>("pool1", nn::PoolKind::max, 2, 2)
      .add<nn::Conv2d>("conv2", 8, 16, conv)
      .add<nn::BatchNorm2d>("bn2", 16)
      .add<PRelu>("act2", 16)
      .add<nn::GlobalPool>("pool", nn::PoolKind::average)
      .add<nn::Linear>("fc", 16, images.classes);
  const Shape image{images.height, images.width, images.channels};
  return std::make_unique<nn::Model>(ctx, "own", std::move(net), image, DType::f32, /*seed=*/1);
}

struct Method {
  double lr;
  std::unique_ptr<optim::Optimizer> (*make)(const Comm&);
};
const Method kMethods[] = {
    {0.2, [](const Comm& comm) { return optim::make_kfac(comm, {}); }},
    {0.5, [](const Comm& comm) { return optim::make_lars(comm, {.eta = 0.02}); }},
    {0.2, [](const Comm& comm) { return optim::make_sgd(comm, {}); }},
    {0.01, [](const Comm& comm) { return optim::make_adamw(comm, {}); }}};

/// A network in training on one rank.
class Training {
 public:
  Training(const Method& method, const Comm& comm, const data::Dataset& images)
      : comm_(comm),
        lr_(method.lr),
        model_(make_network(ctx_, images)),
        optimizer_(method.make(comm)),
        attachment_(*model_, *optimizer_),
        loader_(images, data::normalization_of(images),
                {.count = images.count, .global_batch = 64, .seed = 1}, comm->rank(), comm->size(),
                DType::f32) {
    optimizer_->prepare();  // All ranks now have the weights of rank 0.
  }

  /// Trains for one epoch and returns its mean loss over all ranks.
  double epoch(int number) {
    double loss = 0, samples = 0;
    loader_.start_epoch(number);
    for (data::Batch batch; loader_.next(batch);) {
      const auto own = static_cast<double>(batch.labels.size());
      attachment_.set_scale({.global_batch = batch.global_batch});
      const ConstTensorView logits = model_->forward(ctx_, batch.images, nn::Mode::train);
      Tensor grad = Tensor::empty(ctx_, logits.shape());
      loss += nn::softmax_cross_entropy(ctx_, logits, batch.labels, 0, 1 / own, grad).loss;
      model_->backward(ctx_, grad);  // Passes statistics and gradients to the optimizer.
      (void)optimizer_->step({.lr = lr_});
      samples += own;
    }
    double sums[] = {loss, samples};
    comm_->all_reduce(view_of(sums, {2}), comm::ReduceOp::sum, Stream::cpu(), "loss");
    return sums[0] / sums[1];
  }

  void save(std::ostream& out) {
    Saver saver(out);
    visit(saver);
  }
  void load(std::istream& in) {
    Restorer restorer(in);
    visit(restorer);
    restorer.finish();
  }

  std::string weights() {
    const TensorView w = model_->parameters();
    return {static_cast<const char*>(w.raw()), static_cast<std::size_t>(w.numel()) * sizeof(float)};
  }
  std::string_view method() const { return optimizer_->name(); }

 private:
  /// All that later steps depend on.
  void visit(StateVisitor& visitor) {
    for (const nn::NamedTensor& t : model_->named_tensors())
      visitor.tensor(t.name, t.trained ? StateKind::replicated : StateKind::averaged, t.view);
    optimizer_->visit_state(visitor);
  }

  Context ctx_;
  Comm comm_;
  double lr_;
  std::unique_ptr<nn::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  nn::OptimizerAttachment attachment_;
  data::Loader loader_;
};

/// Trains for four epochs, and again for the last two from a checkpoint of the first two.
bool train(const Method& method, const Comm& comm) {
  const data::Dataset images = data::synthetic_images(512, Shape{12, 12, 1}, 4, /*seed=*/3);
  Training whole(method, comm, images);
  std::stringstream checkpoint;  // A file of this rank in a program that may be killed.
  double first = 0, last = 0;
  for (int number = 0; number < 4; ++number) {
    if (number == 2) whole.save(checkpoint);
    last = whole.epoch(number);
    if (number == 0) first = last;
  }
  Training resumed(method, comm, images);
  resumed.load(checkpoint);
  for (int number = 2; number < 4; ++number) (void)resumed.epoch(number);

  const auto all = comm::all_gather_strings(*comm, whole.weights());
  const bool equal = std::count(all.begin(), all.end(), all.front()) == comm->size();
  const bool same = resumed.weights() == whole.weights();
  if (comm->rank() == 0)
    std::printf(
        "%-5s on %d ranks: loss %.3f in the first epoch, %.3f in the last; weights %s, "
        "resumed %s\n",
        whole.method().data(), comm->size(), first, last, equal ? "equal" : "DIFFER",
        same ? "exactly" : "DIFFERENTLY");
  return equal && same && last < 0.9 * first;
}

/// Compares the layer's backward pass with differences of its forward pass, in f64.
bool gradients_are_right() {
  Context ctx;
  PRelu layer(3);
  const Tensor memory = nn::bind_standalone(ctx, layer, DType::f64, /*seed=*/1);
  Tensor x = Tensor::empty(ctx, {2, 4, 4, 3}, DType::f64);
  Random random(2);
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] = random.normal();
  const nn::GradientCheckResult check = nn::check_gradients(ctx, layer, x);
  std::printf("PReLU: %d derivatives, error %.1e\n", static_cast<int>(check.checked), check.worst);
  return check.worst < 1e-7;
}

bool train_all(const Comm& comm) {
  bool good = true;
  for (const Method& method : kMethods) good = train(method, comm) && good;
  return good;
}

int main() {
  if (!gradients_are_right()) return 1;
  const comm::World world;
  if (world.comm()->size() > 1) return train_all(world.comm()) ? 0 : 1;
  std::atomic<int> good = 0;
  comm::run_ranks(2, [&good](const Comm& comm) { good += train_all(comm); });
  return good == 2 ? 0 : 1;
}
