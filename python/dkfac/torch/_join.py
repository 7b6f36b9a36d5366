"""Ranks whose data end at different steps: the preconditioner within torch.distributed.algorithms.join.Join."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .._library import Error, InvalidArgument
from ._distributed import Comm
from ._gradients import any_nonzero
from ._passes import Use
from ._setup import Setup
from ._sharded import is_sharded

if TYPE_CHECKING:
    from ._model import ModelPreconditioner
    from ._recorder import Recorder

_HOW = ("use `with Join([ddp, kfac]):` of torch.distributed.algorithms.join, where ddp is the DistributedDataParallel "
        "and kfac what attach() returned, or the KFAC optimizer")
_EVERY = ("[Join] every backward pass needs its step, for which a rank without data waits; leave accumulation_steps "
          "and the GradScaler out, or give all ranks as many batches")


class _Outside:
    enable = is_first_joinable = False


class Joining:
    """A step within Join, in which statistics are means over the ranks that have data, whose number is known in the
    step alone. So what the backward pass has found is kept until then."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.config: Any = _Outside  # Join sets it, and leaves it behind.
        self.without_data = False    # A step of JoinHook runs.
        self.end_step()

    def end_step(self) -> None:
        self.ranks = self._setup.comm.size  # That have data.
        self.deferred: list[tuple[Use, torch.Tensor]] = []  # Uses of a pass, with their gradients.

    @property
    def active(self) -> bool:
        return bool(self.config.enable) and self._setup.comm.size > 1

    def group(self) -> Any:
        """Of Join, with the ranks of the communicator."""
        comm = self._setup.comm
        found = comm.process_group() if isinstance(comm, Comm) else None
        return found or dist.group.WORLD

    def refuse(self) -> None:
        setup, size = self._setup, dist.get_world_size(self.group())
        if setup.comm.size != size:
            raise InvalidArgument(f"[Join] the communicator of the preconditioner has {setup.comm.size} ranks, and the "
                                  f"group {size}; attach with a communicator of the same ranks, e.g. Comm.torch(group)")
        if any(map(is_sharded, setup.model.parameters())):
            raise InvalidArgument("[Join] fully_shard() gathers weights in every pass, in which a rank without data "
                                  "takes no part; give all ranks as many batches")
        if (setup.accumulation_steps or 1) > 1 or setup.grad_scaler is not None:
            raise InvalidArgument(_EVERY)

    def refuse_scaler(self) -> None:
        """A GradScaler is in use."""
        if self.active:
            raise InvalidArgument(_EVERY)

    def enter(self, model: torch.nn.Module) -> None:
        """A forward pass begins."""
        if self.deferred and not any_nonzero(p.grad for use, _ in self.deferred for p in use.layer.parameters()):
            self.deferred = []  # Of a pass that was given up.
        parallel = torch.nn.parallel.DistributedDataParallel
        ddp: Any = model if isinstance(model, parallel) else getattr(parallel, "_active_ddp_module", None)
        if self._setup.comm.size > 1 and not self.active and ddp is not None and ddp._join_config.enable:
            raise Error("[dkfac] the model runs in ddp.join(), in which ranks without data take no part in the "
                        f"collectives of K-FAC, for which the others would wait; {_HOW}")

    def meet(self, recorder: Recorder, optimizer: Any, data: bool) -> None:
        """Finds the ranks that have data. The first of them tells the others, where there are any, what this step is.
        Collective over the group of Join, whose calls no other thread makes now."""
        if self.config.is_first_joinable:
            raise Error(f"[Join] the preconditioner comes after the module whose passes count the batches; {_HOW}")
        group, rank = self.group(), dist.get_rank()
        found = torch.zeros(3, dist.get_world_size(), device=self._setup.device)
        found[:, rank] = torch.tensor([data, not data, recorder.registered is None])
        dist.all_reduce(found, group=group)
        with_data, without, unknown = (row.nonzero().flatten().tolist() for row in found)
        self.ranks = len(with_data)
        if without:
            if unknown:
                raise Error(f"[Join] rank {without[0]} had no batch for the step in which layers are found, the first "
                            "one, or the first one after more parameters are trained; give every rank a batch for it")
            self._hand_over(recorder, optimizer, data, with_data[0])

    def _hand_over(self, recorder: Recorder, optimizer: Any, data: bool, leader: int) -> None:
        parameters = [p for p in self._setup.model.parameters() if p.requires_grad]
        groups = [] if optimizer is None else optimizer.param_groups
        options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        said = [(recorder.settings.say(), options, [p.grad is not None for p in parameters])]
        dist.broadcast_object_list(said, src=leader, group=self.group())
        settings, options, present = said[0]
        if not data:
            recorder.settings.hear(settings, recorder.apply_settings)
            for group, its in zip(groups, options):
                group.update(its)
        for p, there in zip(parameters, present):
            sent = None
            if there:
                sent = torch.empty(p.shape, dtype=p.dtype, device=p.device)
                if dist.get_rank() == leader and p.grad is not None:
                    sent = p.grad.detach().contiguous()
                dist.broadcast(sent, src=leader, group=self.group())
            if not data:
                p.grad = None if sent is None else torch.empty_like(p).copy_(sent)


class JoinHook:
    """What a rank without data does while others go on: a step without samples, by the gradients of the others."""

    def __init__(self, kfac: ModelPreconditioner, step: Callable[[], object]) -> None:
        self._kfac, self._step = kfac, step

    def main_hook(self) -> None:
        """Takes part in a step of the other ranks. Gradients are as before afterwards."""
        kfac, recorder = self._kfac, self._kfac._recorder
        joining = recorder.joining
        if not recorder.attached or kfac.comm.size == 1:
            return
        kept = [(p, p.grad) for p in kfac.model.parameters()]
        joining.without_data = True
        try:
            with torch.no_grad():
                joining.meet(recorder, kfac.optimizer, data=False)
            self._step()
        finally:
            joining.without_data = False
            for p, grad in kept:
                p.grad = grad

    def post_hook(self, is_last_joiner: bool) -> None:
        pass


class Joins:
    """A Joinable, by the preconditioner that it is or has."""

    def _joined(self) -> ModelPreconditioner:
        raise NotImplementedError

    def join_hook(self, **options: Any) -> JoinHook:
        """The hook of this rank; `options` are those of DistributedDataParallel, and without effect here."""
        kfac = self._joined()
        kfac._recorder.joining.refuse()
        return JoinHook(kfac, kfac.step if kfac.optimizer is None else kfac.optimizer.step)

    @property
    def join_device(self) -> torch.device:
        return self._joined().device

    @property
    def join_process_group(self) -> Any:
        return self._joined()._recorder.joining.group()

    @property
    def _join_config(self) -> Any:
        return self._joined()._recorder.joining.config

    @_join_config.setter
    def _join_config(self, config: Any) -> None:
        self._joined()._recorder.joining.config = config


if dist.is_available():
    from torch.distributed.algorithms.join import Joinable
    Joinable.register(Joins)  # It does not inherit, for the sake of Joinable's metaclass and constructor.
