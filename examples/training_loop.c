/* K-FAC in a training loop in C: a preconditioner for a network of two layers in plain arrays,
 * independent of the library. Lines that K-FAC adds are marked [+]. The program learns the sign of
 * sin(6 x) from the same weights, on the same points, with the same update w -= lr * gradient: with
 * the plain gradient at several rates, and with the preconditioned one. It fails unless K-FAC ends
 * with a clearly lower loss. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dkfac/c/dkfac.h"

enum { kPoints = 64, kHidden = 24, kSteps = 200 };

typedef struct Net {
  float w1[kHidden], b1[kHidden], w2[kHidden], b2[1];
} Net;

/* Activations and gradients of one pass over all points. */
typedef struct Pass {
  float x[kPoints], h[kPoints][kHidden], dy[kPoints], dh[kPoints][kHidden];
  Net grad;
} Pass;

static void check(int status) {
  if (status == DKFAC_OK) return;
  fprintf(stderr, "%s\n", dkfac_last_error());
  exit(1);
}

/* Returns the mean of log(1 + exp(-label * y)) and leaves its gradients in `pass`. */
static double forward_backward(const Net* net, Pass* pass) {
  double loss = 0;
  memset(&pass->grad, 0, sizeof pass->grad);
  for (int n = 0; n < kPoints; ++n) {
    const float x = 2 * (float)n / (kPoints - 1) - 1;
    float y = net->b2[0];
    pass->x[n] = x;
    for (int i = 0; i < kHidden; ++i) {
      pass->h[n][i] = tanhf(net->w1[i] * x + net->b1[i]);
      y += net->w2[i] * pass->h[n][i];
    }
    const float label = sinf(6 * x) > 0 ? 1.0F : -1.0F, margin = label * y;
    const float dy = -label / (1 + expf(margin)) / kPoints;
    loss += (log1p(exp(-fabs((double)margin))) + (margin < 0 ? -(double)margin : 0)) / kPoints;
    pass->dy[n] = dy;
    pass->grad.b2[0] += dy;
    for (int i = 0; i < kHidden; ++i) {
      const float h = pass->h[n][i], dh = dy * net->w2[i] * (1 - h * h);
      pass->dh[n][i] = dh;
      pass->grad.w2[i] += dy * h;
      pass->grad.w1[i] += dh * x;
      pass->grad.b1[i] += dh;
    }
  }
  return loss;
}

/* [+] A row-major matrix [rows, columns] of f32, or with rows 0 a vector of columns elements. */
static dkfac_tensor tensor_of(float* data, int64_t shape[2], int64_t rows, int64_t columns) {
  dkfac_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  shape[0] = rows > 0 ? rows : columns;
  shape[1] = columns;
  tensor.data = data;
  tensor.shape = shape;
  tensor.ndim = rows > 0 ? 2 : 1;
  tensor.dtype = DKFAC_F32;
  return tensor;
}

/* [+] Makes a preconditioner of the two layers. */
static dkfac_preconditioner* make_kfac(dkfac_comm* comm) {
  dkfac_curvature_options options;
  dkfac_layer_spec spec;
  dkfac_preconditioner* kfac;
  int32_t layer;
  dkfac_curvature_options_init(&options, sizeof options);
  options.damping = 1e-3;
  options.statistics_interval = options.inverse_interval = 1; /* In each step. */
  options.step_length = DKFAC_LENGTH_NONE; /* The natural gradient itself, with a rate of its own. */
  check(dkfac_preconditioner_create(comm, &options, NULL, &kfac));
  dkfac_layer_spec_init(&spec, sizeof spec, DKFAC_LINEAR);
  spec.in = 1;
  spec.out = kHidden;
  check(dkfac_preconditioner_add_layer(kfac, "first", &spec, &layer)); /* layer 0 */
  spec.in = kHidden;
  spec.out = 1;
  check(dkfac_preconditioner_add_layer(kfac, "second", &spec, &layer)); /* layer 1 */
  return kfac;
}

/* [+] Records the pass and preconditions its gradients; returns whether to update. */
static int precondition(dkfac_preconditioner* kfac, Pass* pass) {
  int64_t shapes[8][2];
  const dkfac_tensor x = tensor_of(pass->x, shapes[0], kPoints, 1);
  const dkfac_tensor dh = tensor_of(pass->dh[0], shapes[1], kPoints, kHidden);
  const dkfac_tensor h = tensor_of(pass->h[0], shapes[2], kPoints, kHidden);
  const dkfac_tensor dy = tensor_of(pass->dy, shapes[3], kPoints, 1);
  dkfac_layer_grad grads[2];
  dkfac_step_report report;
  check(dkfac_preconditioner_record_input(kfac, 0, &x, NULL));
  check(dkfac_preconditioner_record_grad_output(kfac, 0, &dh, NULL));
  check(dkfac_preconditioner_record_input(kfac, 1, &h, NULL));
  check(dkfac_preconditioner_record_grad_output(kfac, 1, &dy, NULL));
  grads[0].layer = 0;
  grads[0].weight = tensor_of(pass->grad.w1, shapes[4], kHidden, 1);
  grads[0].bias = tensor_of(pass->grad.b1, shapes[5], 0, kHidden);
  grads[1].layer = 1;
  grads[1].weight = tensor_of(pass->grad.w2, shapes[6], 1, kHidden);
  grads[1].bias = tensor_of(pass->grad.b2, shapes[7], 0, 1);
  report.struct_size = sizeof report;
  check(dkfac_preconditioner_step(kfac, grads, 2, NULL, &report));
  return report.updated; /* 0: the step was rejected, or there is no inverse. */
}

static double train(float lr, dkfac_preconditioner* kfac) {
  Net net;
  static Pass pass;
  double loss = 0;
  memset(&net, 0, sizeof net);
  for (int i = 0; i < kHidden; ++i) {
    net.w1[i] = sinf(7.0F * (float)i + 1);
    net.b1[i] = cosf(5.0F * (float)i);
    net.w2[i] = sinf(3.0F * (float)i + 2) / kHidden;
  }
  for (int step = 0; step < kSteps; ++step) {
    int update = 1;
    loss = forward_backward(&net, &pass);
    if (kfac != NULL) update = precondition(kfac, &pass); /* [+] */
    if (!update) continue;
    for (int i = 0; i < kHidden; ++i) {
      net.w1[i] -= lr * pass.grad.w1[i];
      net.b1[i] -= lr * pass.grad.b1[i];
      net.w2[i] -= lr * pass.grad.w2[i];
    }
    net.b2[0] -= lr * pass.grad.b2[0];
  }
  return loss;
}

int main(void) {
  const float rates[] = {0.3F, 1.0F, 3.0F};
  double best = INFINITY, with_kfac;
  dkfac_comm* comm;
  dkfac_preconditioner* kfac;
  for (int i = 0; i < 3; ++i) {
    const double loss = train(rates[i], NULL);
    printf("plain gradient  lr %-4g  loss %.2e\n", (double)rates[i], loss);
    if (loss < best) best = loss;
  }
  check(dkfac_comm_self(NULL, &comm));
  kfac = make_kfac(comm);
  dkfac_comm_destroy(comm); /* The preconditioner keeps it alive. */
  with_kfac = train(0.2F, kfac);
  dkfac_preconditioner_destroy(kfac);
  printf("K-FAC           lr 0.2   loss %.2e\n", with_kfac);
  return with_kfac < best / 4 ? 0 : 1;
}
