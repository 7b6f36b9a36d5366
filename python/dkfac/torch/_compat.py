"""The interface of kfac-pytorch: KFACPreconditioner with its arguments, enumerations and properties."""
from __future__ import annotations

import enum
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union

import torch
from torch import nn

from .. import _structs as c
from .._comm import Comm
from .._library import InvalidArgument, integer, real
from .._preconditioner import StepReport
from . import _checks, _state
from ._distributed import default_comm
from ._gradients import Rates
from ._layers import Layer
from ._model import ALL_KINDS, ModelPreconditioner
from ._options import CommonOptions, describe
from ._settable import refuse_misnamed
from ._settings import Settings
from ._setup import GradScaler

if TYPE_CHECKING:
    from typing_extensions import Unpack

Scheduled = Union[float, Callable[[int], float]]  # A number, or a function of the step.
ScheduledInt = Union[int, Callable[[int], int]]
_SHOWN = ("allreduce_bucket_cap_mb", "allreduce_method", "assignment_strategy", "colocate_factors", "compute_method",
          "compute_eigenvalue_outer_product", "damping_scale", "distributed_strategy", "factor_dtype",
          "grad_worker_fraction", "inv_dtype", "skip_layers", "symmetry_aware")
_logger = logging.getLogger(__name__)
_Enum = TypeVar("_Enum", bound=enum.Enum)


class AllreduceMethod(enum.Enum):
    ALLREDUCE = 1
    ALLREDUCE_BUCKETED = 2


class AssignmentStrategy(enum.Enum):
    COMPUTE = 1
    MEMORY = 2


class ComputeMethod(enum.Enum):
    EIGEN = 1
    INVERSE = 2


class DistributedStrategy(enum.Enum):
    COMM_OPT = 1
    MEM_OPT = 2
    HYBRID_OPT = 3


def _member(kind: type[_Enum], name: str, value: object) -> _Enum:
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    raise ValueError(f"{name} is {value!r}; it must be one of " + ", ".join(kind.__members__))


def peer_scaling(layer: Layer, positions: int) -> tuple[int, float]:
    """kfac-pytorch averages both factors over the rows of the batch, gradients of the reduced loss as they come:
    G = 1/(N P) sum g g'. Convolutions divide inputs and gradients by the positions P before that. Here
    A = 1/(a N P) sum a a' and G = 1/N sum (g / s)(g / s)'."""
    if layer.kind == c.CONV2D:
        return positions * positions, positions ** 1.5
    return 1, positions ** 0.5


class PeerSettings(Settings):
    """Settings computed from the arguments of kfac-pytorch, `given`: numbers, or functions of the step. `squared`: the
    damping is that of one factor."""

    def __init__(self, given: Mapping[str, Any], squared: bool) -> None:
        self.given, self.squared, self.steps = dict(given), squared, 0
        super().__init__(now := self._now(), list(now))

    def value(self, name: str) -> Any:
        value = self.given[name]
        return value(self.steps) if callable(value) else value

    def numbers(self) -> dict[str, Any]:
        return {name: value for name, value in self.given.items() if not callable(value)}

    def set(self, name: str, value: Any) -> None:
        there = {"statistics_interval": "factor_update_steps", "inverse_interval": "inv_update_steps",
                 "relative_damping": "damping"}
        raise InvalidArgument(f"[settings] {name} is that of {there[name]} here; set this one")

    def _now(self) -> dict[str, Any]:
        damping, decay = self.value("damping"), self.value("factor_decay")
        if not 0 <= decay <= 1:
            raise ValueError(f"factor_decay must be in [0, 1], not {decay} as in step {self.steps}")
        return {"damping": damping ** 2 if self.squared else damping,
                "statistics_interval": max(1, int(self.value("factor_update_steps"))),
                "inverse_interval": max(1, int(self.value("inv_update_steps"))),
                "new_weight": max(1 - decay, 1e-12)}

    def refresh(self) -> None:
        self.values = self._now()

    def say(self) -> dict[str, Any]:
        return dict(super().say(), given=self.numbers())

    def hear(self, said: Mapping[str, Any], apply: Callable[[], None]) -> None:
        self.given.update(said["given"])
        super().hear(said, apply)


@describe(CommonOptions)
class KFACPreconditioner(ModelPreconditioner):
    """K-FAC with the constructor and the methods of kfac-pytorch: call step() between backward and optimizer.step().

    damping_scale: "kfac-pytorch" (default) scales factors, and with them the damping, as that library does, and
        preconditions Linear, Conv1d and Conv2d layers. "dkfac" is the scale of attach(), for all kinds of layers.
    factor_update_steps, inv_update_steps, damping, factor_decay, kl_clip, lr: a number, or a callable of the step.
        Averages begin at the identity, as there; `average_start` chooses another start.
    lr: also the torch.optim.Optimizer itself, whose groups may have rates of their own, which the KL clip then heeds.
    kl_clip: None, or a callable that returns 0, clips nothing.
    grad_worker_fraction: a fraction, or a DistributedStrategy.
    Arguments without effect here are accepted, and listed by `without_effect`: see docs/pytorch.md.
    """

    def __init__(self, model: nn.Module, *, factor_update_steps: ScheduledInt = 1, inv_update_steps: ScheduledInt = 1,
                 damping: Scheduled = 0.001, factor_decay: Scheduled = 0.95,
                 kl_clip: float | Callable[[int], float | None] | None = 0.001,
                 lr: Scheduled | torch.optim.Optimizer = 0.1, accumulation_steps: int = 1,
                 allreduce_bucket_cap_mb: float = 25.0,
                 assignment_strategy: AssignmentStrategy | str = AssignmentStrategy.COMPUTE,
                 colocate_factors: bool = True, compute_method: ComputeMethod | str = ComputeMethod.EIGEN,
                 compute_eigenvalue_outer_product: bool = True,
                 grad_worker_fraction: DistributedStrategy | str | float = DistributedStrategy.COMM_OPT,
                 symmetry_aware: bool = False, grad_scaler: GradScaler | None = None,
                 factor_dtype: torch.dtype | None = None, inv_dtype: torch.dtype | None = torch.float32,
                 skip_layers: _checks.SkipLayers = None, update_factors_in_hook: bool = True,
                 loglevel: int = logging.DEBUG, damping_scale: str = "kfac-pytorch", comm: Comm | None = None,
                 dtype: torch.dtype | int | None = None, **options: Unpack[CommonOptions]) -> None:
        refuse_misnamed("KFACPreconditioner", options, KFACPreconditioner)
        values = {"factor_update_steps": factor_update_steps, "inv_update_steps": inv_update_steps,
                  "damping": damping, "factor_decay": factor_decay, "kl_clip": kl_clip, "lr": lr}
        self._check(values, accumulation_steps, allreduce_bucket_cap_mb)
        if damping_scale not in ("kfac-pytorch", "dkfac"):
            raise ValueError(f"damping_scale is {damping_scale!r}; it must be 'kfac-pytorch' or 'dkfac'")
        self.damping_scale = damping_scale
        self.compute_method = _member(ComputeMethod, "compute_method", compute_method)
        self.assignment_strategy = _member(AssignmentStrategy, "assignment_strategy", assignment_strategy)
        peer = damping_scale == "kfac-pytorch"
        # `inverse` adds the damping itself to both factors: sqrt(lambda) of the constant split.
        inverse = self.compute_method is ComputeMethod.INVERSE
        if not (inverse or colocate_factors) and compute_eigenvalue_outer_product:
            raise ValueError("colocate_factors must be True with compute_eigenvalue_outer_product")
        if peer and inverse:
            options.setdefault("damping_split", "constant")
        options.setdefault("inverse_method", "cholesky" if inverse else "eigen")
        options.setdefault("average_start", "identity" if callable(factor_decay) or factor_decay else "first")
        options.setdefault("low_rank", not callable(factor_decay))  # Rows are of one statistic.
        squared = peer and inverse and options.get("damping_split") == "constant"
        self._given = PeerSettings(values, squared)
        weight = self._given.values["new_weight"]
        if callable(factor_decay):  # Averages have a start; the first pass sets the weight of its step.
            weight = min(weight, 0.5)
        self._clip = float(self.kl_clip or 0)
        _checks.refuse_options(comm, "mean", grad_scaler, 0, options)  # Before a communicator is made.
        comm = comm if comm is not None else default_comm()
        workers, self.distributed_strategy = self._workers(grad_worker_fraction, comm)
        self.grad_worker_fraction = workers / comm.size
        if not colocate_factors and self.distributed_strategy is DistributedStrategy.MEM_OPT:
            warnings.warn("MEM_OPT has both factors of a layer on one rank, as if colocate_factors were True",
                          stacklevel=2)
            colocate_factors = True
        self.allreduce_bucket_cap_mb, self.colocate_factors = allreduce_bucket_cap_mb, colocate_factors
        self.allreduce_method = (AllreduceMethod.ALLREDUCE_BUCKETED if allreduce_bucket_cap_mb > 0
                                 else AllreduceMethod.ALLREDUCE)
        self.compute_eigenvalue_outer_product, self.symmetry_aware = compute_eigenvalue_outer_product, symmetry_aware
        self.grad_scaler, self.factor_dtype, self.inv_dtype = grad_scaler, factor_dtype, inv_dtype
        self.skip_layers = skip_layers or []
        wide = torch.float64 in (inv_dtype, factor_dtype)
        options.setdefault("block_width", -1)
        super().__init__(
            model, comm=comm, accumulation_steps=accumulation_steps, grad_scaler=grad_scaler,
            skip_layers=skip_layers or (), kinds=(c.LINEAR, c.CONV2D) if peer else ALL_KINDS,
            scaling=peer_scaling if peer else None, settings=self._given, damping=self._given.values["damping"],
            new_weight=weight, kl_clip=self._clip, step_length="none",
            early_refreshes=False,
            statistics_interval=self._given.values["statistics_interval"],
            inverse_interval=self._given.values["inverse_interval"],
            grad_worker_fraction=self.grad_worker_fraction if workers > 1 else 0.0,
            bucket_bytes=max(1, int(allreduce_bucket_cap_mb * 2**20)),
            dtype=torch.float64 if wide else dtype, **options)
        self.without_effect = self._ineffective(update_factors_in_hook)
        if self.without_effect:
            _logger.warning("KFACPreconditioner: without effect here: %s",
                            "; ".join(f"{k} ({v})" for k, v in self.without_effect.items()))
        for layer in self.curved():
            _logger.log(loglevel, 'Registered name="%s": %s', layer.name, layer.module)
        _logger.log(loglevel, "%r", self)
        self._complete = True

    @staticmethod
    def _check(values: Mapping[str, Any], accumulation_steps: int, bucket_mb: float) -> None:
        for name, value in values.items():
            if value is not None and not callable(value) and not isinstance(value, torch.optim.Optimizer):
                (integer if name.endswith("steps") else real)("KFACPreconditioner", name, value)
        accumulation_steps = integer("KFACPreconditioner", "accumulation_steps", accumulation_steps)
        for name in ("factor_update_steps", "inv_update_steps", "damping", "kl_clip"):
            value = values[name]
            if value is not None and not callable(value) and not value > 0:
                raise ValueError(f"{name} must be > 0, not {value}")
        if not callable(values["factor_decay"]) and not 0 <= values["factor_decay"] <= 1:
            raise ValueError(f"factor_decay must be in [0, 1], not {values['factor_decay']}")
        fixed = not callable(values["lr"]) and not isinstance(values["lr"], torch.optim.Optimizer)
        if fixed and not values["lr"] >= 0:
            raise ValueError(f"lr must be >= 0, not {values['lr']}")
        if accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be > 0, not {accumulation_steps}")
        if not bucket_mb >= 0:
            raise ValueError(f"allreduce_bucket_cap_mb must be >= 0, not {bucket_mb}")
        statistics, inverses = values["factor_update_steps"], values["inv_update_steps"]
        if not callable(statistics) and not callable(inverses) and statistics < inverses and inverses % statistics:
            warnings.warn(f"inv_update_steps is {inverses}, not a multiple of factor_update_steps, {statistics}: some "
                          "inverses are rebuilt from factors of earlier steps", stacklevel=3)

    @staticmethod
    def _workers(value: DistributedStrategy | str | float, comm: Comm) -> tuple[int, DistributedStrategy]:
        """How many ranks precondition a layer."""
        if isinstance(value, str):
            value = _member(DistributedStrategy, "grad_worker_fraction", value)
        given = value if isinstance(value, DistributedStrategy) else None
        if isinstance(value, DistributedStrategy):
            value = {DistributedStrategy.COMM_OPT: 1.0, DistributedStrategy.HYBRID_OPT: 0.5,
                     DistributedStrategy.MEM_OPT: 0.0}[value]
        if not 0 <= value <= 1:
            raise ValueError(f"grad_worker_fraction must be in [0, 1], not {value}")
        workers = max(1, round(value * comm.size))
        if comm.size % workers:
            raise ValueError(f"grad_worker_fraction {value} of {comm.size} ranks gives groups of unequal size")
        if given is not None:
            return workers, given
        if workers == comm.size:
            return workers, DistributedStrategy.COMM_OPT
        return workers, DistributedStrategy.MEM_OPT if workers == 1 else DistributedStrategy.HYBRID_OPT

    def _ineffective(self, in_hook: bool) -> dict[str, str]:
        found = {}
        if self.assignment_strategy is AssignmentStrategy.MEMORY:
            found["assignment_strategy"] = "layers are assigned by operation counts"
        if not self.colocate_factors:
            found["colocate_factors"] = "both factors of a layer have one owner"
        if not self.compute_eigenvalue_outer_product:
            found["compute_eigenvalue_outer_product"] = "products of eigenvalues are not stored"
        if not in_hook:
            found["update_factors_in_hook"] = "factors are always computed in the hooks"
        if {self.factor_dtype, self.inv_dtype} & {torch.float16, torch.bfloat16}:
            found["factor_dtype, inv_dtype"] = "factors and inverses are float32 or float64"
        return found

    @property
    def steps(self) -> int:
        return self._given.steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._given.steps = value

    @property
    def damping(self) -> float:
        return self._given.value("damping")

    @damping.setter
    def damping(self, value: Scheduled) -> None:
        self._set("damping", value)

    @property
    def factor_decay(self) -> float:
        return self._given.value("factor_decay")

    @property
    def kl_clip(self) -> float | None:
        return self._given.value("kl_clip")

    @kl_clip.setter
    def kl_clip(self, value: float | Callable[[int], float | None] | None) -> None:
        self._set("kl_clip", value)

    @property
    def lr(self) -> float | torch.optim.Optimizer:
        return self._given.value("lr")

    @lr.setter
    def lr(self, value: Scheduled | torch.optim.Optimizer) -> None:
        self._set("lr", value)

    @property
    def factor_update_steps(self) -> int:
        return self._given.value("factor_update_steps")

    @factor_update_steps.setter
    def factor_update_steps(self, value: ScheduledInt) -> None:
        self._set("factor_update_steps", value)

    @property
    def inv_update_steps(self) -> int:
        return self._given.value("inv_update_steps")

    @inv_update_steps.setter
    def inv_update_steps(self, value: ScheduledInt) -> None:
        self._set("inv_update_steps", value)

    def _set(self, name: str, value: object) -> None:
        self._check({**self._given.given, name: value}, 1, self.allreduce_bucket_cap_mb)
        self._given.given[name] = value
        self._given.refresh()
        self._changed()

    def step(self) -> StepReport:
        """Preconditions the gradients of the model in place. They are averaged over ranks already, e.g. by
        DistributedDataParallel, and without a loss scale. Where the report that it returns has `rejected`, a gradient
        or a statistic of some rank was not finite: the gradients are unchanged, and optimizer.step() is to be left
        out."""
        self._given.refresh()
        return self.precondition(self._rates())

    def _rates(self) -> Rates:
        """The clip is min(1, sqrt(kl_clip / (lr^2 sum))), so a changed kl_clip is a changed rate."""
        clip, lr = self.kl_clip, self.lr
        if self._clip > 0:
            scale = (self._clip / clip) ** 0.5 if clip else 0.0
            if isinstance(lr, torch.optim.Optimizer):
                return {key: rate * scale for key, rate in _checks.rates_of(lr, True).items()}
            return max(max(float(lr), 1e-30) * scale, 1e-30)
        if clip:
            raise InvalidArgument("[step] kl_clip was None or 0 at the start, so it cannot be turned on; start with a "
                                  "number or a callable that returns one")
        return None

    def memory_usage(self) -> dict[str, int]:
        """As that of kfac-pytorch: bytes of factors and inverses, with "total"."""
        return dict(super().memory_usage(), a_batch=0, g_batch=0)

    def state_dict(self, include_factors: bool = True) -> dict[str, Any]:
        """`include_factors`: with the running averages and inverses, so that training resumes bit for bit."""
        state = {"steps": self.steps, **{n: v for n, v in self._given.numbers().items()
                                         if not isinstance(v, torch.optim.Optimizer)}}
        if include_factors:
            state["dkfac"] = super().state_dict()
        return state

    def full_state_dict(self, rank0_only: bool = False) -> dict[str, Any]:
        full = super().full_state_dict(rank0_only)
        return {**self.state_dict(include_factors=False), "dkfac": full} if full else {}

    def load_state_dict(self, state_dict: Mapping[str, Any], compute_inverses: bool = True) -> None:
        """Inverses are part of a state with factors, whatever `compute_inverses` is. Each rank loads its own state, or
        all load that of one rank."""
        if "layers" in state_dict and "dkfac" not in state_dict:
            raise InvalidArgument("[load_state_dict] this state was saved by kfac-pytorch; its factors are in another "
                                  "form, so only state_dict(include_factors=False) of it can be loaded")
        if "dkfac" not in state_dict and compute_inverses:
            warnings.warn("the state has no factors, so that there are no inverses to compute", stacklevel=2)
        state = state_dict.get("dkfac")
        if (isinstance(state, Mapping) and state.get("ranks") == self.comm.size
                and state["rank"] not in (None, self.comm.rank)):
            warnings.warn(f"[load_state_dict] this is the state of rank {state['rank']}, without averages of the "
                          f"layers that rank {self.comm.rank} owns: they begin anew; to resume bit for bit, save the "
                          "state of every rank and load it there", stacklevel=2)
            state = _state.for_rank(state, self.comm.rank)
        given = self._given
        kept = given.steps, given.given
        try:
            given.steps = state_dict["steps"]
            given.given = {name: state_dict.get(name, value) for name, value in kept[1].items()}
            if state is not None:
                super().load_state_dict(state)
        except Exception:
            given.steps, given.given = kept
            self._recorder.apply_settings()
            raise

    def __repr__(self) -> str:
        shown = {"accumulation_steps": self._recorder.setup.accumulation_steps, "layers": len(self.curved()),
                 "steps": self.steps, "comm": self.comm, **self._given.given,
                 **{name: getattr(self, name) for name in _SHOWN}}
        lines = "\n".join(f"  {name}={shown[name]}," for name in sorted(shown))
        return f"KFACPreconditioner(\n{lines}\n)"
