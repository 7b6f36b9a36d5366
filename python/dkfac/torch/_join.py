"""Ranks whose data end at different steps: the preconditioner within torch.distributed.algorithms.join.Join."""
import torch
import torch.distributed as dist

from .._library import Error, InvalidArgument
from ._gradients import any_nonzero

_HOW = ("use `with Join([ddp, kfac]):` of torch.distributed.algorithms.join, where ddp is the DistributedDataParallel "
        "and kfac what attach() returned, or the KFAC optimizer")


class _Outside:
    enable = is_first_joinable = False


class JoinHook:
    """What a rank without data does while others go on: a step without samples, by the gradients of the others."""

    def __init__(self, kfac, step):
        self._kfac, self._step = kfac, step

    def main_hook(self):
        self._kfac._step_without_data(self._step)

    def post_hook(self, is_last_joiner):
        pass


class Joins:
    """A ModelPreconditioner as a Joinable. In a step within Join, statistics are means over the ranks that have data,
    whose number is known in the step alone. So what the backward pass has found is kept until then."""

    _join_config = _Outside  # Join sets it, and leaves it behind.
    _without_data = False    # A step of JoinHook runs.
    optimizer = None         # Whose step() calls this preconditioner.

    def join_hook(self, **options):
        """The hook of this rank; `options` are those of DistributedDataParallel, and without effect here."""
        if self.comm.size != dist.get_world_size(self.join_process_group):
            raise InvalidArgument(f"[Join] the communicator of the preconditioner has {self.comm.size} ranks, and the "
                                  f"group {dist.get_world_size(self.join_process_group)}; attach with a communicator "
                                  "of the same ranks, e.g. Comm.torch(group)")
        if self.accumulation_steps > 1 or self.grad_scaler is not None:
            raise InvalidArgument("[Join] every backward pass needs its step, for which a rank without data waits; "
                                  "leave accumulation_steps and the GradScaler out, or give all ranks as many batches")
        return JoinHook(self, self.step if self.optimizer is None else self.optimizer.step)

    @property
    def join_device(self):
        return self.device

    @property
    def join_process_group(self):
        return self.comm.group_of_caller() or dist.group.WORLD

    def _joining(self):
        return self._join_config.enable and self.comm.size > 1

    def _enter_joined(self, model):
        """A forward pass begins."""
        if self._deferred and not any_nonzero(p.grad for use, _ in self._deferred for p in use.layer.parameters()):
            self._deferred = []  # Of a pass that was given up.
        parallel = torch.nn.parallel.DistributedDataParallel
        ddp = model if isinstance(model, parallel) else getattr(parallel, "_active_ddp_module", None)
        if self.comm.size > 1 and not self._joining() and ddp is not None and ddp._join_config.enable:
            raise Error("[dkfac] the model runs in ddp.join(), in which ranks without data take no part in the "
                        f"collectives of K-FAC, for which the others would wait; {_HOW}")

    # --- in a step ----------------------------------------------------------------------------------------------------

    def _meet(self, data):
        """Finds the ranks that have data. The first of them tells the others, where there are any, what this step is.
        Collective over the group of Join, whose calls no other thread makes now."""
        if self._join_config.is_first_joinable:
            raise Error(f"[Join] the preconditioner comes after the module whose passes count the batches; {_HOW}")
        group, rank = self.join_process_group, dist.get_rank()
        found = torch.zeros(3, dist.get_world_size(), device=self.device)
        found[:, rank] = torch.tensor([data, not data, self._preconditioner is None])
        dist.all_reduce(found, group=group)
        with_data, without, unknown = (row.nonzero().flatten().tolist() for row in found)
        self._ranks = len(with_data)
        if without:
            if unknown:
                raise Error(f"[Join] rank {without[0]} had no batch for the step in which layers are found, the first "
                            "one, or the first one after more parameters are trained; give every rank a batch for it")
            self._hand_over(data, with_data[0], group)

    def _hand_over(self, data, leader, group):
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        said = [(self._say(), [p.grad is not None for p in parameters])]
        dist.broadcast_object_list(said, src=leader, group=group)
        options, present = said[0]
        if not data:
            self._hear(options)
        for p, there in zip(parameters, present):
            sent = None
            if there:
                leads = dist.get_rank() == leader
                sent = p.grad.detach().contiguous() if leads else torch.empty(p.shape, dtype=p.dtype, device=p.device)
                dist.broadcast(sent, src=leader, group=group)
            if not data:
                p.grad = None if sent is None else torch.empty_like(p).copy_(sent)

    def _say(self):
        """What the loop of a rank with data may have changed."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return {"applied": self._applied, "settings": self.settings,
                "groups": [{k: v for k, v in group.items() if k != "params"} for group in groups]}

    def _hear(self, said):
        self.settings = said["applied"]
        self._apply_settings()
        self.settings = said["settings"]
        for group, options in zip([] if self.optimizer is None else self.optimizer.param_groups, said["groups"]):
            group.update(options)

    def _step_without_data(self, step):
        """Takes part in a step of the other ranks. Gradients are as before afterwards."""
        if not self._hooks or self.comm.size == 1:
            return
        kept = [(p, p.grad) for p in self.model.parameters()]
        self._without_data = True
        try:
            with torch.no_grad():
                self._meet(data=False)
            step()
        finally:
            self._without_data = False
            for p, grad in kept:
                p.grad = grad

    def _begin_step(self):
        """In a step of a rank with data."""
        if self._joining() and not self._without_data:
            with torch.no_grad():
                self._meet(data=True)

    def _record_deferred(self):
        deferred, self._deferred = self._deferred, []
        for use, grad in deferred:
            self._record(use.layer, use, grad)


class JoinsWithin:
    """An optimizer as a Joinable, by its `preconditioner`."""

    def join_hook(self, **options):
        return self.preconditioner.join_hook(**options)

    join_device = property(lambda self: self.preconditioner.join_device)
    join_process_group = property(lambda self: self.preconditioner.join_process_group)
    _join_config = property(lambda self: self.preconditioner._join_config,
                            lambda self, config: setattr(self.preconditioner, "_join_config", config))


if dist.is_available():
    from torch.distributed.algorithms.join import Joinable
    for kind in (Joins, JoinsWithin):  # They do not inherit, for the sake of Joinable's metaclass and constructor.
        Joinable.register(kind)
