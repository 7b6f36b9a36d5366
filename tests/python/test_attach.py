"""What attach() takes for an optimizer."""
import pytest
import torch

import dkfac.torch as dkfac
from test_misuse import attached, batch, net, train_step


class Wrapper:
    """What steps an optimizer, and is none of torch's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()


def test_what_is_no_optimizer_is_refused_with_what_to_pass():
    """Control: what wraps an optimizer and is one by its methods; and each one of a list."""
    model = net()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]
    scaler = type("GradScaler", (), {"get_scale": lambda self: 1.0, "step": lambda self, optimizer: None})()
    trainer = type("Trainer", (), {"optimizer": optimizers[0]})()
    inner = "its attribute `optimizer`"
    for given, kind, advice in (
            (torch.optim.lr_scheduler.StepLR(optimizers[0], 1), "a StepLR", inner), (trainer, "a Trainer", inner),
            (torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers[0]), "a ReduceLROnPlateau", inner),
            (scaler, "a GradScaler", "it as grad_scaler="), (optimizers, "a list", "each of them in an attach"),
            (model.parameters(), "a generator", "the one whose step"), (None, "a NoneType", "the one whose step"),
            (torch.optim.SGD, "the class SGD", "the one whose step")):
        with pytest.raises(TypeError) as refused:
            dkfac.attach(model, given)
        assert f"[attach] the second argument is {kind}; it must be a torch.optim.Optimizer: pass {advice}" in str(
            refused.value)
    both = [dkfac.attach(model, one) for one in optimizers]
    x, y = batch()
    ((model(x) - y) ** 2).mean().backward()
    for one, kfac, layer in zip(optimizers, both, "02"):
        one.step()
        assert [found.name for found in kfac.curved()] == [layer] and kfac.last_report.updated
        kfac.detach()
    model, optimizer, kfac = attached()
    kfac.detach()
    kfac = dkfac.attach(model, Wrapper(optimizer))
    train_step(model, optimizer, x, y)
    assert kfac.optimizer is optimizer and kfac.last_report.updated
