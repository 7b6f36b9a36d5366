"""The options of attach(): names, types, defaults and what they mean, once for all that take them."""
from __future__ import annotations

import ast
import functools
import inspect
import pathlib
from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, Union

import torch

from .._comm import Comm
from ._checks import SkipLayers
from ._setup import BatchDim, GradScaler

_DType = Union[torch.dtype, int]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class CommonOptions(TypedDict, total=False):
    """Those that KFACPreconditioner takes too. Most are fields of dkfac_curvature_options."""

    loss_reduction: Literal["mean", "sum"]
    """Over the samples of a pass. Default "mean"."""
    batch_dim: BatchDim
    """Dimension of the samples in the first tensor argument of the model, or a callable of its arguments that returns
    their number. Before torch 2.0 keyword arguments are not seen. Default 0."""
    graphs: bool
    """On a CUDA device, preconditioning that is equal in many steps is launched as a CUDA graph. Default True."""
    damping_split: Literal["pi", "equal_traces", "constant"]
    """How the damping is divided between the two factors of a layer. Default "pi"."""
    norm_damping: float
    """Normalisations use norm_damping * damping. Default 1.0."""
    statistics_fraction: float
    """Of the samples of a pass that enter the statistics, in (0, 1]: the first ones, at least one. Default 1.0."""
    norm_fisher: Literal["diagonal", "unit_wise", "full"]
    """Blocks of normalisations: per parameter, per channel, or the whole matrix. Default "unit_wise"."""
    sharing: Literal["expand", "reduce"]
    """Every position of a sample is a row of the factors, or one row per sample: the mean input and the sum of the
    gradients. Default "expand"."""
    operand: _DType
    """Type to which operands of factor products are rounded; sums stay in `dtype`. Default -1: that of the data."""
    low_rank: bool
    """Keeps factors with fewer rows than their width as rows, which is exact; with new_weight 1, "cholesky" and fixed
    intervals only. Default True."""
    average_start: Literal["first", "identity", "trace"]
    """Where running averages begin: at the first statistic, corrected for the start; at the identity; or at the
    multiple of it that has the trace of the first statistic; neither of these with new_weight 1. Default "first"."""
    early_refreshes: bool
    """Statistics in each of the first 10 steps, and inverses after the statistics 1, 2, 3, 5, 8, 12, 18, 27, ... until
    these are inverse_interval steps apart. Default True."""
    staleness: Literal["fixed", "adaptive"]
    """Statistics are updated at the intervals, or each at its own, set from its drift. Default "fixed"."""
    stagger_inverses: bool
    """Spreads the rebuilds of inverses over the steps of inverse_interval. Default False."""
    delay_inverses: bool
    """Uses rebuilt inverses from the next step on. Not with "ekfac". Default False."""
    similarity: float
    """Relative change below which the adaptive rule takes a statistic for unchanged, >= 0. Default 0.1."""
    max_interval: int
    """Upper bound of the adaptive intervals; 0 is none. Default 0."""
    inverse_method: Literal["cholesky", "eigen", "ekfac"]
    """Inverses of damped factors; eigenvectors, with the damping on products of eigenvalues; or eigenvectors with the
    second moments of the gradient, for inverse_interval > statistics_interval. Default "cholesky"."""
    block_width: int
    """Factors that are wider keep diagonal blocks of this width; -1 is none. "cholesky" only. Default 0: chosen by
    counted work."""
    max_failed_refreshes: int
    """Consecutive failures of one factor that keep its last good inverse; one more is a NumericError. Default 3."""
    failure_folder: str | pathlib.Path | None
    """Where a factor that failed too often is saved. Default None: nowhere."""
    calibrate: bool
    """Assigns layers to ranks by measured times, not by operation counts. Default False."""
    split_factors: bool
    """Lets the two factors of a layer be inverted by different ranks, where that evens out their work; the weights are
    equal bit for bit. Not with "ekfac", whose factors stay together. Default False."""
    split_wide: bool
    """Lets 2, 4 or 8 ranks invert a wide factor together, where it is more work than a rank has on average; the weights
    then depend on the number of ranks within rounding. "cholesky" only, on the CPU; not a factor of diagonal blocks, so
    with block_width=-1. Default False."""
    local_statistics: bool
    """Computes statistics from the samples of the rank that inverts them alone (DP-KFAC, Zhang et al. 2022): none is
    sent, each rank computes its own, and they are noisier. Every rank needs samples in each step, so not with Join; nor
    with "ekfac". Default False."""
    precondition_tf32: bool
    """On a CUDA device, products that precondition a gradient round operands to TF32. Default False."""
    overlap: bool
    """Reduces statistics while the backward pass goes on. Default True."""
    statistics_wire: _DType
    """Type in which statistics are sent: float32, bfloat16 or float16. Default -1: that of the computation."""


class Options(CommonOptions, total=False):
    """Those of attach() and KFAC."""

    dtype: _DType | None
    """Of factors and inverses. Default None: float32, or float64 where the model has parameters of it."""
    comm: Comm | None
    """The ranks. Default None: those of torch.distributed, or one."""
    accumulation_steps: int | None
    """Backward passes of a step; the loss of each is divided by their number. More are an error. Default None: they are
    counted, and a step with more than those before it has no statistics."""
    grad_scaler: GradScaler | None
    """What scales the loss: an object with get_scale(), or a callable that returns the scale. Default None: the
    GradScaler of torch that is found to scale the loss, if one does."""
    fisher: Literal["empirical", "monte_carlo"]
    """Statistics are those of the gradients of the loss, or of fisher_backward(). Default "empirical"."""
    skip_layers: SkipLayers
    """Regular expressions of names or classes of modules that get the first-order update; one that is found in none,
    and names no class that could have curvature, is an error. Default ()."""
    new_weight: float
    """Weight of the newest statistic in the running average, in (0, 1]. Default 0.05."""
    relative_damping: float
    """lambda of each layer, in mean eigenvalues of its factors at each rebuild of its inverse (those of G weighted by
    themselves: tr G^2 / tr G), whatever the scale of the loss. Not with `damping`. Default 0.3."""
    kl_clip: float
    """kappa of the KL clip, which multiplies all preconditioned gradients by min(1, sqrt(kappa / sum lr^2 <U, V>));
    0 is none. Default 0.0."""
    step_length: Literal["auto", "none", "gradient", "projection", "gradual", "quadratic"]
    """Length of a layer's preconditioned gradient U beside its gradient V: "none", its own; "gradient", |V| / sqrt(cos)
    with their cosine, which is kept at 0.3 or more, and less in ten first steps and while gradients oppose the steps
    before them, so that rates of the optimizer alone stay right; "gradual", the same, but nearer to V in the first 60
    steps, for optimizers that divide by the size of their gradients; "projection", that of V's projection on U. The
    last three not with kl_clip. "quadratic", of KFAC alone: rate and momentum of each step are those of a quadratic
    model of the loss. Default "auto": "gradual" where the optimizer's groups have `betas` or `eps`, as Adam's,
    otherwise "gradient"; with kl_clip "none"."""
    grad_worker_fraction: float
    """Fraction of the ranks that hold the inverses of a layer; 0 is one rank. Default 0.0."""
    overhead: float
    """What K-FAC may add to a step on average, as a fraction of the step without it: of processor time, or on a CUDA
    device of time. Chooses the intervals that are None. Default 0.25."""
    bucket_bytes: int
    """A reduction starts once about as many bytes are pending. Default 4194304."""


@functools.lru_cache(maxsize=2)
def documented(options: type) -> dict[str, tuple[str, Any]]:
    """{name: (what it means, its default)} of a class of options, those of its bases first. Editors read the text from
    the source; so does this, as Python does not keep it."""
    found: dict[str, tuple[str, Any]] = {}
    source = pathlib.Path(__file__)
    tree = ast.parse(source.read_text() if source.is_file() else "")  # Programs that are packed may have none.
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if options.__name__ not in classes:
        return found
    for base in classes[options.__name__].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found.update(documented(globals()[base.id]))
    body = classes[options.__name__].body
    for name, text in zip(body, body[1:]):
        if isinstance(name, ast.AnnAssign) and isinstance(name.target, ast.Name) and isinstance(text, ast.Expr):
            words = " ".join(str(ast.literal_eval(text.value)).split())
            default = words.rsplit("Default ", 1)[1].rstrip(".").split(":")[0]
            found[name.target.id] = words, ast.literal_eval(default)
    return found


def describe(options: type) -> Callable[[_Function], _Function]:
    """Lists options, in place of **options, in the signature and the docstring of a function or class at run time."""
    def decorate(function: _Function) -> _Function:
        given = inspect.signature(function)
        known = [p for p in given.parameters.values() if p.kind is not p.VAR_KEYWORD]
        listed = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
                  for name, (_, default) in documented(options).items()]
        target: Any = function
        target.__signature__ = given.replace(parameters=[*known, *listed])
        lines = [f"    {name}: {text}" for name, (text, _) in documented(options).items()]
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n" + "\n".join(lines)
        return function
    return decorate
