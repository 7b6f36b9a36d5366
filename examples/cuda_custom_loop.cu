// K-FAC in an existing CUDA training loop, by four added calls: add_layer() once per layer,
// record_input() and record_grad_output() where the layer runs, and step() before the update.
//
// The network is a small classifier of two interleaved spirals, with memory from cudaMalloc and its
// own kernels and stream, independent of the library. Lines that K-FAC adds are marked [+]. The
// host synchronizes once per step, for the agreement on the step inside step(). The program trains
// from the same weights, on the same batches, with the same update w -= lr * gradient: with the
// plain gradient at several rates, and with the preconditioned one. It fails unless K-FAC ends with
// a clearly lower loss. Exit code 77: there is no CUDA device.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numbers>
#include <vector>

#include <cuda_runtime.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/preconditioner.h"

namespace {

constexpr int kBatch = 200, kIn = 2, kHidden = 32, kSteps = 300, kThreads = 128;

void check(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

unsigned blocks(int n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

/// Floats on the device.
class Array {
 public:
  explicit Array(int n) : n_(n) {
    check(cudaMalloc(&data_, sizeof(float) * static_cast<std::size_t>(n)));
  }
  ~Array() { (void)cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  void fill(const std::vector<float>& from, cudaStream_t stream) {
    check(cudaMemcpyAsync(data_, from.data(), sizeof(float) * from.size(), cudaMemcpyHostToDevice,
                          stream));
    check(cudaStreamSynchronize(stream));  // `from` is plain memory and may end with the call.
  }
  [[nodiscard]] float* data() const { return data_; }
  [[nodiscard]] int size() const { return n_; }
  /// A view for the library.
  [[nodiscard]] dkfac::TensorView view(dkfac::Shape shape) const {
    return {data_, dkfac::DType::f32, shape, dkfac::Device::cuda()};
  }

 private:
  float* data_ = nullptr;
  int n_;
};

/// y[n,o] = f(b[o] + sum x[n,i] w[o,i]), f = tanh or the identity.
__global__ void forward(int in, int out, const float* x, const float* w, const float* b,
                        bool curved, float* y) {
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= kBatch * out) return;
  const int n = at / out, o = at % out;
  float sum = b[o];
  for (int i = 0; i < in; ++i) sum += w[o * in + i] * x[n * in + i];
  y[at] = curved ? tanhf(sum) : sum;
}

/// dw[o,i] and, in the column after the last, db[o].
__global__ void weight_gradient(int in, int out, const float* x, const float* dy, float* dw,
                                float* db) {
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= out * (in + 1)) return;
  const int o = at / (in + 1), i = at % (in + 1);
  float sum = 0;
  for (int n = 0; n < kBatch; ++n) sum += dy[n * out + o] * (i < in ? x[n * in + i] : 1.0F);
  if (i < in)
    dw[o * in + i] = sum;
  else
    db[o] = sum;
}

/// The gradient before the tanh whose value is x.
__global__ void input_gradient(int in, int out, const float* w, const float* dy, const float* x,
                               float* dx) {
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= kBatch * in) return;
  const int n = at / in, i = at % in;
  float sum = 0;
  for (int o = 0; o < out; ++o) sum += dy[n * out + o] * w[o * in + i];
  dx[at] = sum * (1 - x[at] * x[at]);
}

/// Adds the mean of log(1 + exp(-label * y)) over the batch to loss[0]; one thread.
__global__ void logistic_loss(const float* y, const float* label, float* dy, float* loss) {
  float sum = 0;
  for (int n = 0; n < kBatch; ++n) {
    const float margin = label[n] * y[n];
    sum += log1pf(expf(-fabsf(margin))) + fmaxf(-margin, 0.0F);
    dy[n] = -label[n] / (1 + expf(margin)) / kBatch;
  }
  *loss += sum / kBatch;
}

__global__ void update(int n, float lr, const float* gradient, float* weight) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) weight[i] -= lr * gradient[i];
}

struct Layer {
  int in, out;
  Array w, b, dw, db;

  Layer(int inputs, int outputs, dkfac::Random& random, cudaStream_t stream)
      : in(inputs), out(outputs), w(in * out), b(out), dw(in * out), db(out) {
    std::vector<float> values(static_cast<std::size_t>(in * out));
    for (float& value : values) value = static_cast<float>(random.normal() / std::sqrt(in));
    w.fill(values, stream);
    b.fill(std::vector<float>(static_cast<std::size_t>(out)), stream);
  }
  void run(const Array& x, bool curved, Array& y, cudaStream_t stream) const {
    forward<<<blocks(kBatch * out), kThreads, 0, stream>>>(in, out, x.data(), w.data(), b.data(),
                                                           curved, y.data());
  }
  void gradients(const Array& x, const Array& dy, cudaStream_t stream) {
    weight_gradient<<<blocks(out * (in + 1)), kThreads, 0, stream>>>(in, out, x.data(), dy.data(),
                                                                     dw.data(), db.data());
  }
  void back(const Array& x, const Array& dy, Array& dx, cudaStream_t stream) const {
    input_gradient<<<blocks(kBatch * in), kThreads, 0, stream>>>(in, out, w.data(), dy.data(),
                                                                 x.data(), dx.data());
  }
  void step(float lr, cudaStream_t stream) {
    update<<<blocks(w.size()), kThreads, 0, stream>>>(w.size(), lr, dw.data(), w.data());
    update<<<blocks(b.size()), kThreads, 0, stream>>>(b.size(), lr, db.data(), b.data());
  }
};

struct Spirals {
  std::vector<float> x = std::vector<float>(kBatch * kIn), label = std::vector<float>(kBatch);

  explicit Spirals(dkfac::Random& random) {
    for (std::size_t n = 0; n < kBatch; ++n) {
      const double t = random.uniform(), arm = n % 2 == 0 ? 0 : std::numbers::pi;
      const double angle = 1.5 * 2 * std::numbers::pi * t + arm, radius = 0.2 + 1.8 * t;
      x[2 * n] = static_cast<float>(radius * std::cos(angle) + 0.02 * random.normal());
      x[2 * n + 1] = static_cast<float>(radius * std::sin(angle) + 0.02 * random.normal());
      label[n] = n % 2 == 0 ? 1.0F : -1.0F;
    }
  }
};

enum class Method { sgd, kfac };

/// Returns the mean loss of the last 50 steps.
double train(float lr, Method method) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  dkfac::Random random(7);
  Layer first(kIn, kHidden, random, stream), second(kHidden, kHidden, random, stream),
      last(kHidden, 1, random, stream);
  Array x(kBatch * kIn), label(kBatch), h1(kBatch * kHidden), h2(kBatch * kHidden), y(kBatch);
  Array dy(kBatch), dh2(kBatch * kHidden), dh1(kBatch * kHidden), loss(1);

  // [+] once: a preconditioner on the device, the layers, and where their gradients are
  const dkfac::Stream ours = dkfac::Stream::cuda(stream);
  dkfac::kfac::Preconditioner kfac(
      dkfac::comm::make_self(),
      {.damping = 1e-3, .refresh = {.statistics_interval = 1, .inverse_interval = 1}},
      dkfac::Device::cuda());
  const auto id1 = kfac.add_layer("first", dkfac::LinearSpec{.in = kIn, .out = kHidden});
  const auto id2 = kfac.add_layer("second", dkfac::LinearSpec{.in = kHidden, .out = kHidden});
  const auto id3 = kfac.add_layer("last", dkfac::LinearSpec{.in = kHidden, .out = 1});
  const auto grads_of = [](dkfac::LayerId id, const Layer& l) {
    return dkfac::kfac::LayerGrad{id, l.dw.view({l.out, l.in}), l.db.view({l.out})};
  };
  const std::vector<dkfac::kfac::LayerGrad> grads{grads_of(id1, first), grads_of(id2, second),
                                                  grads_of(id3, last)};

  for (int step = 1; step <= kSteps; ++step) {
    const Spirals batch(random);
    x.fill(batch.x, stream);
    label.fill(batch.label, stream);
    if (step == 1 || step == kSteps - 49)
      check(cudaMemsetAsync(loss.data(), 0, sizeof(float), stream));
    first.run(x, true, h1, stream);
    second.run(h1, true, h2, stream);
    last.run(h2, false, y, stream);
    logistic_loss<<<1, 1, 0, stream>>>(y.data(), label.data(), dy.data(), loss.data());
    last.gradients(h2, dy, stream);
    last.back(h2, dy, dh2, stream);
    second.gradients(h1, dh2, stream);
    second.back(h1, dh2, dh1, stream);
    first.gradients(x, dh1, stream);

    if (method == Method::kfac) {
      kfac.record_input(id1, x.view({kBatch, kIn}), ours);              // [+]
      kfac.record_grad_output(id1, dh1.view({kBatch, kHidden}), ours);  // [+]
      kfac.record_input(id2, h1.view({kBatch, kHidden}), ours);         // [+]
      kfac.record_grad_output(id2, dh2.view({kBatch, kHidden}), ours);  // [+]
      kfac.record_input(id3, h2.view({kBatch, kHidden}), ours);         // [+]
      kfac.record_grad_output(id3, dy.view({kBatch, 1}), ours);         // [+]
      if (!kfac.step(grads, ours).updated) continue;                    // [+]
    }
    first.step(lr, stream);
    second.step(lr, stream);
    last.step(lr, stream);
  }
  float sum = 0;
  check(cudaGetLastError());
  check(cudaMemcpyAsync(&sum, loss.data(), sizeof sum, cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  check(cudaStreamDestroy(stream));
  return static_cast<double>(sum) / 50;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: there is no CUDA device\n");
    return 77;
  }
  const auto show = [](const char* name, float lr, double loss) {
    std::printf("%-16s lr %-4g  %.4f\n", name, static_cast<double>(lr), loss);
    return loss;
  };
  std::printf("mean loss of the last 50 steps; log 2 = 0.69 is a coin\n");
  // The plain gradient gets the best of several rates, K-FAC a single one.
  double plain = std::numeric_limits<double>::infinity();
  for (const float lr : {1.0F, 5.0F, 10.0F})
    plain = std::min(plain, show("plain gradient", lr, train(lr, Method::sgd)));
  const double kfac = show("K-FAC", 0.1F, train(0.1F, Method::kfac));
  return kfac < plain / 4 ? 0 : 1;
}
