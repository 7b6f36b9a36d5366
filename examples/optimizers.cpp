// K-FAC, LARS, SGD, AdamW and Muon as distributed optimizers of a small network in plain loops.
// Each rank passes its local gradients while backward runs, and all ranks get equal weights. Ranks
// are two threads, or the processes started by mpirun, srun or torchrun. Fails unless every
// optimizer halves the loss and leaves bitwise identical weights on all ranks.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dkfac/comm/in_process.h"
#include "dkfac/comm/launch.h"
#include "dkfac/core/random.h"
#include "dkfac/optim/optimizer.h"

using namespace dkfac;
using Values = std::vector<float>;
using Comm = std::shared_ptr<comm::Communicator>;
constexpr std::size_t kBatch = 64, kInputs = 4, kHidden = 16, kSteps = 60;

template <std::size_t kIn, std::size_t kOut>
struct Layer {
  Values w = Values(kOut * kIn), dw = w;
  LayerId id;

  Layer(optim::Optimizer& optimizer, const char* name, Random& random) {
    for (float& value : w) value = static_cast<float>(random.normal() / std::sqrt(kIn));
    id = optimizer.add_layer(
        name, LinearSpec{.in = kIn, .out = kOut, .bias = false},
        {.weight = view_of(w.data(), {kOut, kIn}), .weight_grad = view_of(dw.data(), {kOut, kIn})});
  }
  Values forward(const Values& x) const {
    Values y(kBatch * kOut);
    for (std::size_t i = 0; i < y.size(); ++i)
      for (std::size_t k = 0; k < kIn; ++k) y[i] += w[i % kOut * kIn + k] * x[i / kOut * kIn + k];
    return y;
  }
  Values backward(const Values& x, const Values& dy) {  // Computes dw, returns dx.
    Values dx(x.size());
    dw.assign(dw.size(), 0);
    for (std::size_t i = 0; i < dy.size() * kIn; ++i) {
      const std::size_t n = i / kIn / kOut * kIn + i % kIn, o = i % (kIn * kOut);
      dw[o] += dy[i / kIn] * x[n];
      dx[n] += dy[i / kIn] * w[o];
    }
    return dx;
  }
};

ConstTensorView rows(const Values& v) {
  return view_of(v.data(), {kBatch, static_cast<std::int64_t>(v.size() / kBatch)});
}

bool train(optim::Optimizer& optimizer, double lr, comm::Communicator& comm) {
  Random weights(1),
      data(2, static_cast<std::uint64_t>(comm.rank()));  // Each rank has its own data.
  Layer<kInputs, kHidden> first(optimizer, "first", weights);
  Layer<kHidden, 1> last(optimizer, "last", weights);
  optimizer.prepare();
  Values x(kBatch * kInputs), dy(kBatch);
  for (float& value : x) value = static_cast<float>(data.normal());
  double loss = 0, before = 0;
  for (std::size_t step = 0; step <= kSteps; ++step) {
    Values hidden = first.forward(x);
    for (float& h : hidden) h = std::tanh(h);
    const Values y = last.forward(hidden);
    loss = 0;
    for (std::size_t n = 0; n < kBatch; ++n) {
      const float error = y[n] - std::sin(2 * x[n * kInputs]);
      loss += 0.5 * static_cast<double>(error * error) / kBatch / comm.size();
      dy[n] = error / kBatch;  // The mean over this rank's samples; ranks are averaged.
    }
    comm.all_reduce(view_of(&loss, {1}), comm::ReduceOp::sum, Stream::cpu(), "loss");
    before = step == 0 ? loss : before;
    if (step == kSteps) break;
    const bool record = optimizer.wants_statistics();  // Only with K-FAC.
    if (record) {
      optimizer.record_input(first.id, rows(x));
      optimizer.record_input(last.id, rows(hidden));
      optimizer.record_grad_output(last.id, rows(dy));
    }
    Values dh = last.backward(hidden, dy);
    optimizer.grads_ready(last.id);  // The reduction may overlap with backward.
    for (std::size_t i = 0; i < dh.size(); ++i) dh[i] *= 1 - hidden[i] * hidden[i];
    if (record) optimizer.record_grad_output(first.id, rows(dh));
    (void)first.backward(x, dh);
    optimizer.grads_ready(first.id);
    (void)optimizer.step({.lr = lr});
  }
  std::string bits;
  for (const Values* v : {&first.w, &last.w})
    bits.append(reinterpret_cast<const char*>(v->data()), sizeof(float) * v->size());
  const auto all = comm::all_gather_strings(comm, bits);
  const bool equal = std::count(all.begin(), all.end(), bits) == comm.size();
  if (comm.rank() == 0)
    std::printf("%-5s on %d ranks: loss %.4f before, %.4f after, weights %s\n",
                optimizer.name().data(), comm.size(), before, loss, equal ? "equal" : "DIFFER");
  return equal && loss < before / 2;
}

bool train_all(const Comm& comm) {
  const std::pair<double, std::unique_ptr<optim::Optimizer>> methods[] = {
      {0.03, optim::make_kfac(comm, {.curvature = {.refresh = {.statistics_interval = 1,
                                                               .inverse_interval = 1}}})},
      {0.1, optim::make_lars(comm, {.eta = 0.05})},
      {0.1, optim::make_sgd(comm, {})},
      {0.02, optim::make_adamw(comm, {})},
      {0.02, optim::make_muon(comm, {})}};
  bool good = true;
  for (const auto& [lr, optimizer] : methods) good = train(*optimizer, lr, *comm) && good;
  return good;
}

int main() {
  const comm::World world;
  if (world.comm()->size() > 1) return train_all(world.comm()) ? 0 : 1;
  bool good = false;
  comm::run_ranks(2, [&good](const Comm& comm) {
    const bool mine = train_all(comm);
    if (comm->rank() == 0) good = mine;  // Rank 0 has compared all of them.
  });
  return good ? 0 : 1;
}
