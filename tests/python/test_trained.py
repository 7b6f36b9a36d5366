"""Parameters that are trained only after attach(): unfrozen, or given to the optimizer later."""
import math
import warnings

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import grads_of


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def batch(seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 4, generator=generator), torch.randn(6, 3, generator=generator)


def backward(model, optimizer, seed=5):
    x, y = batch(seed)
    optimizer.zero_grad(set_to_none=True)
    ((model(x) - y) ** 2).mean().backward()


def train_step(model, optimizer, seed=5):
    backward(model, optimizer, seed)
    optimizer.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others))


def freeze(model):
    model[0].requires_grad_(False)
    return torch.optim.SGD(model[2].parameters(), lr=0.1)


def unfreeze(model, optimizer):
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.1})


@pytest.mark.parametrize("form", ["attach", "KFAC", "KFACPreconditioner"])
@pytest.mark.parametrize("interval", [1, 10])
def test_layers_that_are_unfrozen_get_curvature_in_the_next_pass(form, interval):
    """As with a new attach() at that time, bit for bit."""
    def attached(model, optimizer):
        if form == "KFACPreconditioner":
            return dkfac.KFACPreconditioner(model, factor_update_steps=interval, inv_update_steps=interval)
        options = {"statistics_interval": interval, "inverse_interval": interval}
        return optimizer.preconditioner if form == "KFAC" else dkfac.attach(model, optimizer, **options)

    def step(model, optimizer, kfac, seed):
        backward(model, optimizer, seed)
        raw = grads_of(model)
        if form == "KFACPreconditioner":
            kfac.step()
        optimizer.step()
        return raw
    results = []
    for anew in (False, True):
        model = net()
        optimizer = freeze(model)
        if form == "KFAC":
            optimizer = dkfac.KFAC(model, 0.1, 0.0, params=model[2].parameters(), statistics_interval=interval,
                                   inverse_interval=interval)
        kfac = attached(model, optimizer)
        assert kfac.reasons() == {"0": "it is frozen; once it is trained, the next pass gives it curvature"}
        for seed in (1, 2):
            step(model, optimizer, kfac, seed)
        assert "it is frozen" in kfac.report()
        unfreeze(model, optimizer)
        assert "next pass" in kfac.reasons()["0"]
        if anew:
            kfac.detach()
            if form == "KFAC":
                optimizer = dkfac.KFAC(model, 0.1, 0.0, statistics_interval=interval, inverse_interval=interval)
            kfac = attached(model, optimizer)
            raw = step(model, optimizer, kfac, 3)
        else:
            with pytest.warns(UserWarning, match="^.dkfac. 0: trained from this pass on.*begins anew"):
                raw = step(model, optimizer, kfac, 3)
        assert not kfac.reasons() and not torch.equal(raw["0.weight"], model[0].weight.grad)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Once.
            step(model, optimizer, kfac, 4)
        assert kfac.steps == (2 if anew else 4)
        results.append(weights(model))
    assert same(*results)


def test_layers_that_are_unfrozen_before_the_first_pass_are_as_if_they_had_been_trained(recwarn):
    results = []
    for late in (False, True):
        model = net()
        optimizer = freeze(model) if late else torch.optim.SGD(model.parameters(), lr=0.1)
        kfac = dkfac.attach(model, optimizer)
        if late:
            unfreeze(model, optimizer)
        train_step(model, optimizer)
        assert not kfac.reasons()
        results.append(weights(model))
    assert same(*results) and not recwarn.list


def test_layers_of_a_later_parameter_group_get_curvature():
    """They were trainable at the start, and the optimizer did not have them."""
    model = net()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    train_step(model, optimizer)
    assert kfac.reasons() == {"0": "the optimizer does not have its parameters"}
    optimizer.add_param_group({"params": list(model[0].parameters())})
    with pytest.warns(UserWarning, match="0: trained from this pass on"):
        train_step(model, optimizer)
    assert not kfac.reasons() and kfac.last_report.updated


def test_a_bias_that_is_unfrozen_belongs_to_its_layer():
    model = net()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    train_step(model, optimizer)
    assert list(kfac.reasons()) == ["0.bias"]
    model[0].bias.requires_grad_(True)
    with pytest.warns(UserWarning, match="0: trained from this pass on"):
        backward(model, optimizer)
    raw = grads_of(model)
    optimizer.step()
    assert not kfac.reasons() and not torch.equal(raw["0.bias"], model[0].bias.grad)


def test_a_layer_that_was_frozen_for_steps_begins_anew():
    """Its averages have faded; they would make its update many times as long."""
    results = []
    for anew in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        kfac = dkfac.attach(model, optimizer, new_weight=0.5)
        train_step(model, optimizer)
        model[0].requires_grad_(False)
        for _ in range(10):
            train_step(model, optimizer)
        model[0].requires_grad_(True)
        if anew:
            kfac.detach()
            kfac = dkfac.attach(model, optimizer, new_weight=0.5)
            train_step(model, optimizer)
        else:
            with pytest.warns(UserWarning, match="0: trained from this pass on"):
                train_step(model, optimizer)
        results.append(weights(model))
    assert same(*results)


def test_a_discriminator_that_is_frozen_for_the_passes_of_a_generator_keeps_its_curvature(recwarn):
    """Control: it is frozen within each step, and in none of its own."""
    results = []
    for frozen in (False, True):
        model, generator = net(), nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kfac = dkfac.attach(model, optimizer)
        for step in range(4):
            train_step(model, optimizer, step)
            model.requires_grad_(not frozen)
            model(generator(batch(step)[0])).square().mean().backward()
            model.requires_grad_(True)
        assert kfac.last_report.updated
        results.append(weights(model))
    assert same(*results) and not recwarn.list


def other_module(model):
    model[2] = nn.Linear(5, 3)


def other_weights(model):
    model[2].weight, model[2].bias = nn.Parameter(model[2].weight * 2), nn.Parameter(model[2].bias * 2)


@pytest.mark.parametrize("interval", [1, 10])
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("replace", [other_module, other_weights])
def test_a_layer_that_is_replaced_and_given_to_the_optimizer_gets_curvature(replace, steps, interval):
    """In the next pass, also where no statistics would have been due."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, statistics_interval=interval, inverse_interval=interval)
    for _ in range(steps):
        train_step(model, optimizer)
    replace(model)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        backward(model, optimizer)
    assert [str(one.message).startswith("[dkfac] 2: trained from this pass on") for one in told] == [True] * (steps > 0)
    raw = grads_of(model)
    optimizer.step()
    assert not torch.equal(raw["2.weight"], model[2].weight.grad) and not kfac.reasons()
    assert kfac.curved()[1].weight is model[2].weight


@pytest.mark.parametrize("interval", [1, 10])
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("replace", [other_module, other_weights])
def test_a_layer_that_is_replaced_and_not_given_to_the_optimizer_is_an_error_of_the_next_step(replace, steps, interval):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dkfac.attach(model, optimizer, statistics_interval=interval, inverse_interval=interval)
    for _ in range(steps):
        train_step(model, optimizer)
    replace(model)
    with pytest.raises(dkfac.Error, match="(layer '2'|weight of layer '2') was replaced after attach.*attach again"):
        train_step(model, optimizer)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_parameters_that_are_unfrozen_within_a_step_wait_for_the_next(accumulated):
    model = net()
    optimizer = freeze(model)
    kfac = dkfac.attach(model, optimizer, accumulation_steps=2)
    x, y = batch()
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for i in range(2):
                if step == 1 and i == accumulated - 1:
                    unfreeze(model, optimizer)
                (((model(x) - y) ** 2).mean() / 2).backward()
            optimizer.step()
        assert kfac.last_report.updated
        assert len([w for w in caught if "trained from" in str(w.message)]) == (step == accumulated)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["unfrozen", "frozen in the optimizer", "outside of the model", "complex"])
def test_a_gradient_that_is_not_finite_skips_the_step_whatever_the_optimizer_was_given_since(where, bad):
    model, other = net(), nn.Parameter(torch.zeros(2, dtype=torch.complex64 if where == "complex" else None))
    optimizer = freeze(model)
    if where == "frozen in the optimizer":
        optimizer.add_param_group({"params": list(model[0].parameters())})
    kfac = dkfac.attach(model, optimizer)
    train_step(model, optimizer)
    if where == "unfrozen":
        backward(model, optimizer)
        unfreeze(model, optimizer)  # After the pass: its gradient comes from elsewhere.
    elif where != "frozen in the optimizer":
        optimizer.add_param_group({"params": [other]})
        backward(model, optimizer)
        other.grad = torch.zeros_like(other)
        other.grad[1] = bad
    else:
        backward(model, optimizer)
    if where in ("unfrozen", "frozen in the optimizer"):
        model[0].weight.grad = torch.full_like(model[0].weight, bad)
    before = weights(model)
    optimizer.step()
    assert kfac.last_report.rejected and same(before, weights(model))
    if other.grad is not None:
        other.grad.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train_step(model, optimizer)
    assert kfac.last_report.updated


def test_finetuning_of_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import BaseFinetuning

    class Finetuning(BaseFinetuning):
        def freeze_before_training(self, module):
            self.freeze(module.net[0])

        def finetune_function(self, module, epoch, optimizer):
            if epoch == 1:
                self.unfreeze_and_add_param_group(module.net[0], optimizer, lr=0.01)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.seen = net(), []

        def training_step(self, xy, index):
            self.seen.append(sorted(self.kfac.reasons()) if hasattr(self, "kfac") else [])
            return ((self.net(xy[0]) - xy[1]) ** 2).mean()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.01)
            self.kfac = dkfac.attach(self.net, optimizer)
            return optimizer
    module = Module()
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False,
                                callbacks=[Finetuning()], default_root_dir=str(tmp_path))
    data = torch.utils.data.DataLoader(list(zip(*batch())), batch_size=3)
    with pytest.warns(UserWarning, match="0: trained from this pass on"):
        trainer.fit(module, data)
    assert module.seen[:2] == [["0"], ["0"]] and not module.kfac.reasons() and module.kfac.steps == 4


def test_layers_that_are_frozen_again_have_a_reason():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, damping=0.1)
    train_step(model, optimizer)
    model[0].requires_grad_(False)
    assert kfac.reasons() == {"0": "it is frozen"}
    train_step(model, optimizer)
    assert kfac.reasons() == {"0": "it is frozen"} and kfac.last_report.updated
    model[0].requires_grad_(True)
    assert not kfac.reasons()


def test_parameters_that_are_unfrozen_and_not_given_to_the_optimizer_have_a_reason():
    """As where another adapter is set than the one that the optimizer was made for."""
    model = net().requires_grad_(False)
    model[0].requires_grad_(True)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    train_step(model, optimizer)
    model[2].requires_grad_(True)
    assert kfac.reasons() == {"2": "the optimizer does not have it"}
    optimizer.add_param_group({"params": model[2].parameters()})  # Control.
    assert kfac.reasons() == {"2": "it gets curvature in the next pass, if its layer has some"}
