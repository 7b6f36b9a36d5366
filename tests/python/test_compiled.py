"""torch.compile of an attached model is refused with one sentence, in all its spellings."""
import pytest
import torch
from torch import nn

import dkfac.torch as dkfac

if not hasattr(nn.Module, "compile"):
    pytest.skip("this version of torch has no torch.compile", allow_module_level=True)

MATCH = "under torch.compile, which hides the inputs of its layers; run it uncompiled"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.part = nn.Linear(4, 5), nn.Linear(5, 3), None

    def middle(self, x):
        return torch.tanh(self.first(x))

    def forward(self, x):
        return self.second(self.middle(x) if self.part is None else self.part(x))


def compiled(function, **options):
    return torch.compile(function, backend="eager", **options)


def in_place(module):
    module.compile(backend="eager")


def wrapper(model, **options):
    return compiled(model, **options)


def method(model):
    in_place(model)
    return model


def submodule(model):
    model.first = compiled(model.first)
    return model


def submodule_in_place(model):
    in_place(model.first)
    return model


def function_inside(model):
    model.part = compiled(model.middle)
    return model


def function_around(model):
    return compiled(lambda x: model(x) * 1)


def forward(model):
    model.forward = compiled(model.forward)
    return model


SPELLINGS = {"wrapper": wrapper, "fullgraph": lambda model: wrapper(model, fullgraph=True), "method": method,
             "submodule": submodule, "submodule in place": submodule_in_place, "function inside": function_inside,
             "function around": function_around, "forward": forward,
             "function around, fullgraph": lambda model: compiled(lambda x: model(x) * 1, fullgraph=True)}


def attached(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, dkfac.attach(model, optimizer, **options)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("when", ["after", "after a step", "before"])
def test_every_spelling_is_refused(spelling, when):
    torch._dynamo.reset()
    model, x = Net(), torch.randn(6, 4)

    def train(called):
        for _ in range(2):
            optimizer.zero_grad()
            called(x).square().mean().backward()
            optimizer.step()
    with pytest.raises(Exception, match=MATCH + "|is compiled by torch.compile.*run it uncompiled") as caught:
        if when == "before":
            called = SPELLINGS[spelling](model)
            optimizer, kfac = attached(model)
        else:
            optimizer, kfac = attached(model)
            if when == "after a step":
                train(model)
            called = SPELLINGS[spelling](model)
        train(called)
    assert isinstance(caught.value, dkfac.InvalidArgument) or "fullgraph" in spelling


def test_what_is_compiled_beside_the_training_of_the_model_is_allowed():
    """A loss, evaluation, passes that are paused, the model of another training, and a model that a compiled function
    calls uncompiled."""
    torch._dynamo.reset()
    model, other, x = Net(), Net(), torch.randn(6, 4)
    optimizer, kfac = attached(model)
    loss = compiled(lambda out: out.square().mean())
    uncompiled = torch.compiler.disable(model)
    around = compiled(lambda x: uncompiled(x * 1) * 1)
    for called in (model, around):
        optimizer.zero_grad()
        loss(called(x)).backward()
        optimizer.step()
        compiled(other)(x).sum().backward()
    model.eval()
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(compiled(model)(x), expected)
    model.train()
    with kfac.paused():
        assert torch.equal(compiled(model)(x), expected)
    assert kfac.steps == 2 and kfac.last_report.updated and not kfac.reasons()
