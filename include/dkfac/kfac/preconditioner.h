#pragma once

#include <memory>
#include <span>
#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/state.h"
#include "dkfac/core/stream.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/factors.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"

namespace dkfac::kfac {

/// Gradients of one layer, preconditioned in place: contiguous, f32 or f64, whatever
/// CurvatureOptions::dtype is. `weight` has the shape of the weight (weight_shape(): [out,in],
/// [out,kh,kw,in], ...); a convolution's may also be [out, kh*kw*in], and any may be a vector, of
/// the same elements in the same order. Another shape of as many elements, as that of a transposed
/// matrix, is refused. `bias` is [out], or empty for a layer without one. A BatchNorm has gamma in
/// `weight` and beta in `bias`, [channels] each. A PlainSpec takes any shape.
struct LayerGrad {
  LayerId layer{};
  TensorView weight;
  TensorView bias;
};

/// K-FAC on somebody else's training loop. It borrows pointers, never owns parameters, never sees a
/// network type, never prints.
///
/// Every iteration, per layer: record_input() in the forward pass and record_grad_output() in the
/// backward pass (record_normalization() for a normalisation); then, with gradients already
/// averaged over ranks, step(). The update rule stays the caller's.
///
/// Each call reads the caller's memory in the order of its stream (inline host stream: before it
/// returns). On a CUDA device it works on a stream of its own, which follows the caller's; what the
/// caller puts on her stream after a record (but CurvatureOptions::records_stay) or a step follows
/// that work. All views and streams are of that device. The host waits once per step, for the vote;
/// with worker_fraction above 1/P up to twice more in steps that rebuild, with EKFAC once; up to
/// twice where a layer has no inverse yet, as in the first step; where an inverse failed, or an f16
/// operand has no range yet; in rebuilds of eigenvectors, where cusolverDnXsyevd may block; and
/// where the communicator does. With CurvatureOptions::micro_batches > 1 that many records of a
/// layer add up.
class Preconditioner {
 public:
  explicit Preconditioner(std::shared_ptr<comm::Communicator> comm, CurvatureOptions options = {},
                          Device device = Device::cpu(), ContextOptions context = {});
  ~Preconditioner();
  Preconditioner(const Preconditioner&) = delete;
  Preconditioner& operator=(const Preconditioner&) = delete;
  Preconditioner(Preconditioner&&) noexcept;
  Preconditioner& operator=(Preconditioner&&) noexcept;

  [[nodiscard]] LayerId add_layer(std::string name, LayerSpec spec);
  /// Fixes the layers and who owns them; throws InvalidArgument when ranks disagree about them. A
  /// collective; called by the first record or step when the caller has not.
  void prepare();

  /// False on steps whose statistics are not used, so that a caller can skip the records.
  [[nodiscard]] bool wants_statistics() const;
  /// The same for one layer and record: under the adaptive rule each statistic has its own steps.
  [[nodiscard]] bool wants_input(LayerId layer) const;
  [[nodiscard]] bool wants_grad_output(LayerId layer) const;  ///< And for record_normalization().
  /// input: [n,in] (rows may have gaps) or [n,...,in] of a LinearSpec, the activation of a
  /// Conv2dSpec, of any floating dtype; indices [n,...] of an EmbeddingSpec, i32, contiguous. In a
  /// step the inputs and the output gradients of a layer are of the same samples and positions, in
  /// whatever order and parts. n may be 0 where other ranks or records have samples and
  /// RecordScale::global_batch counts them. Throws InvalidArgument, and has recorded nothing then.
  void record_input(LayerId layer, ConstTensorView input, Stream stream = Stream::cpu(),
                    RecordScale scale = {});
  /// grad_output: d loss / d output of the layer, in the reduction of CurvatureOptions. Gradients
  /// of the training loss give the empirical Fisher.
  void record_grad_output(LayerId layer, ConstTensorView grad_output, Stream stream = Stream::cpu(),
                          RecordScale scale = {});
  /// x: input of the normalisation; mean, inv_std: what x was normalised by, of one shape: [c] of
  /// the batch, or [groups,c] of ghost groups of consecutive samples; with NormOver::channels
  /// [rows], one for each sample and position.
  void record_normalization(LayerId layer, ConstTensorView x, ConstTensorView mean,
                            ConstTensorView inv_std, ConstTensorView grad_output,
                            Stream stream = Stream::cpu(), RecordScale scale = {});

  /// Preconditions `grads` in place, equal on all ranks. Where report.updated is false they are
  /// left as they are: skip the update. Either the vote has failed, and no statistic has been
  /// touched, or no layer has an inverse. Where only some have none (report.without_inverse), the
  /// gradients of these stay. Throws NumericError on every rank once a factor has failed more than
  /// max_failed_refreshes times. args.lr is only read by the KL clip, which needs one > 0.
  StepReport step(std::span<const LayerGrad> grads, Stream stream = Stream::cpu(),
                  const StepArgs& args = {});

  /// Copies of what this rank holds of a layer's curvature, as the last step has left it: all of it
  /// on the owner, inverses on the other workers, nothing elsewhere. After prepare(), at any time
  /// but during a call; not a collective; changes nothing. Waits for the device. There an inverse
  /// that the last step could not rebuild is still the one before it.
  [[nodiscard]] LayerFactors read_factors(LayerId layer);

  void set_damping(double damping);
  /// As in Optimizer.
  void set_curvature(const CurvatureSettings& settings);
  /// As in Optimizer; prepares when the caller has not. Options are no part of the state: set a
  /// damping that has been changed before loading.
  void visit_state(StateVisitor& visitor);
  [[nodiscard]] const CurvatureOptions& options() const;
  /// Layers, owners, bytes, why a layer is not covered; after prepare().
  [[nodiscard]] std::string describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dkfac::kfac
