#include "nn/fusion/plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dkfac/core/error.h"

#include "nn/fusion/state.h"
#include "nn/shared/fusion.h"

namespace dkfac::nn {
namespace {

constexpr std::array kFusions{Fusion::moments, Fusion::gradient};

enum class End { first, last };

/// Returns the layer at this end of nested Sequentials; null where one is empty.
Layer* layer_at(End end, Layer* layer) {
  while (const auto* sequence = dynamic_cast<const Sequential*>(layer)) {
    const auto& children = sequence->children();
    if (children.empty()) return nullptr;
    layer = (end == End::first ? children.front() : children.back()).second.get();
  }
  return layer;
}

Conv2d* as_convolution(Layer* layer) { return dynamic_cast<Conv2d*>(layer); }
BatchNorm2d* as_norm(Layer* layer) { return dynamic_cast<BatchNorm2d*>(layer); }

bool can_fuse_moments(const Conv2d& conv, const BatchNorm2d& norm) {
  return conv.out() == norm.channels() && !conv.options().bias && norm.options().groups == 1;
}

bool can_fuse_gradient(const BatchNorm2d& norm, const Conv2d& conv) {
  return norm.channels() == conv.in() && norm.options().groups == 1 &&
         norm.options().activation.kind == ActivationKind::relu;
}

/// Calls f(layer, next layer) on neighbouring children of all Sequentials of `root`.
template <class F>
void for_each_neighbours(Layer& root, const F& f) {
  root.visit([&](Layer& layer) {
    const auto* sequence = dynamic_cast<const Sequential*>(&layer);
    if (sequence == nullptr) return;
    const auto& children = sequence->children();
    for (std::size_t i = 1; i < children.size(); ++i)
      f(children[i - 1].second.get(), children[i].second.get());
  });
}

/// Calls f(link of the convolution, normalisation) on the pairs that allow this fusion.
template <class F>
void for_each_pair(Layer& root, Fusion what, const F& f) {
  for_each_neighbours(root, [&](Layer* layer, Layer* next) {
    if (what == Fusion::moments) {
      Conv2d* conv = as_convolution(layer);
      BatchNorm2d* norm = as_norm(next);
      if (conv != nullptr && norm != nullptr && can_fuse_moments(*conv, *norm))
        f(fusion_of(*conv).moments, *norm);
    } else {
      BatchNorm2d* norm = as_norm(layer_at(End::last, layer));
      Conv2d* conv = as_convolution(layer_at(End::first, next));
      if (norm != nullptr && conv != nullptr && can_fuse_gradient(*norm, *conv))
        f(fusion_of(*conv).gradient, *norm);
    }
  });
}

/// Calls f(link) on the pairs of all fusions.
template <class F>
void for_all_links(Layer& root, const F& f) {
  for (const Fusion what : kFusions)
    for_each_pair(root, what, [&](ConvFusion::Link& link, BatchNorm2d&) { f(link); });
}

}  // namespace

void fuse(Layer& root, Fusion what, FusionUse use) {
  for_each_pair(root, what, [&](ConvFusion::Link& link, BatchNorm2d& norm) {
    link.norm = use == FusionUse::off ? nullptr : &fusion_of(norm);
    link.is_chosen = use == FusionUse::on;
    link.is_measured = use == FusionUse::measured;
    link.was_used = false;
  });
}

std::string fusion_choices(Layer& root) {
  std::string choices;
  for (const Fusion what : kFusions) {
    if (what != kFusions.front()) choices += '/';
    for_each_pair(root, what, [&](const ConvFusion::Link& link, BatchNorm2d&) {
      choices += link.is_chosen ? '1' : '0';
    });
  }
  return choices;
}

void set_fusion_choices(Layer& root, std::string_view choices) {
  const std::string now = fusion_choices(root);
  const bool fits = std::ranges::equal(
      now, choices, [](char a, char b) { return a == '/' ? b == '/' : b == '0' || b == '1'; });
  DKFAC_CHECK(fits, "[model] the choices '", std::string(choices),
              "' of fusions are of other pairs than this model's, '", now,
              "'; use those of the same model");
  std::size_t at = 0;
  for (const Fusion what : kFusions) {
    for_each_pair(root, what, [&](ConvFusion::Link& link, BatchNorm2d&) {
      const char choice = choices[at++];
      if (link.is_measured) link.is_chosen = choice == '1';
    });
    ++at;
  }
}

bool has_measured_fusions(Layer& root) {
  bool has = false;
  for_all_links(root, [&](const ConvFusion::Link& link) { has |= link.is_measured; });
  return has;
}

MeasuredFusions::MeasuredFusions(Layer& root, const WorkTimer& timer) : root_(root) {
  for_all_links(root_, [&](ConvFusion::Link& link) {
    if (link.is_measured) link.timer = &timer;
  });
}

MeasuredFusions::~MeasuredFusions() {
  for_all_links(root_, [](ConvFusion::Link& link) { link.timer = nullptr; });
}

FusedPairs fused_pairs(Layer& root, Fusion what) {
  FusedPairs count;
  for_each_pair(root, what, [&](const ConvFusion::Link& link, BatchNorm2d&) {
    ++count.pairs;
    count.fused += link.was_used ? 1 : 0;
  });
  return count;
}

BatchNorm2d* summing_norm(Layer& body) {
  BatchNorm2d* norm = as_norm(layer_at(End::last, &body));
  const bool is_free = norm != nullptr && norm->options().activation.kind == ActivationKind::none;
  return is_free ? norm : nullptr;
}

ConstTensorView take(GradAddend& left, const Layer& layer, ConstTensorView grad_output) {
  const GradAddend addend = std::exchange(left, GradAddend{});
  const ConstTensorView view = addend.view;
  if (view.empty()) return {};
  DKFAC_CHECK(addend.of.raw() == grad_output.raw() && view.shape() == grad_output.shape() &&
                  view.dtype() == grad_output.dtype() && view.is_contiguous(),
              "[backward] '", layer.name(), "': the gradient ", view.dtype(), " ", view.shape(),
              " was left to be added to another one than the output gradient ", grad_output.dtype(),
              " ", grad_output.shape(), "; run the network's whole backward pass");
  return view;
}

PassedGradient::PassedGradient(const Context& ctx, Layer& layer, Layer& next) {
  if (!ctx.device().is_cuda()) return;
  block_ = dynamic_cast<Residual*>(layer_at(End::first, &next));
  if (block_ == nullptr) return;
  Layer* const last = layer_at(End::last, &layer);
  if (auto* pool = dynamic_cast<Pool2d*>(last)) block_->adds_ = addend_of(*pool);
  auto* block = dynamic_cast<Residual*>(last);
  if (block != nullptr && block->norm_ != nullptr)
    block_->adds_ = &fusion_of(*block->norm_).grad_addend;
}

PassedGradient::~PassedGradient() {
  if (block_ != nullptr) block_->adds_ = nullptr;
}

void add_next(BatchNorm2d& norm, ConstTensorView addend, const Activation& activation) {
  DKFAC_CHECK(norm.options().activation.kind == ActivationKind::none, "[batch_norm] '", norm.name(),
              "' has an activation of its own; nothing can be added before it");
  NormFusion& fusion = fusion_of(norm);
  fusion.addend = addend;
  fusion.activation = activation;
}

}  // namespace dkfac::nn
