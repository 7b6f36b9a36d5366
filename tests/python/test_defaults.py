"""What attach() does where no options are passed."""
import dkfac.torch as dkfac
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.defaults


def steps_of(count, factor=1, **options):
    """Gradients and directions of the two layers in each step, weight and bias in one vector, and the reports."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, **options)
    found = []
    for _ in range(count):
        optimizer.zero_grad()
        (factor * model(torch.randn(8, 6, dtype=torch.float64)).square().sum(1).mean()).backward()
        before = gradients_of(model)
        optimizer.step()
        found.append((before, gradients_of(model), kfac.last_report))
    return found


def gradients_of(model):
    return [torch.cat([layer.weight.grad.flatten(), layer.bias.grad]).clone() for layer in (model[0], model[2])]


def lengths_differ(found):
    """How far each direction is from |V| cos^p, with its cosine and the p of the first steps."""
    return [abs(float(u.norm() / v.norm() * (torch.dot(u, v) / u.norm() / v.norm()) ** (0.15 * step - 1)) - 1)
            for step, (before, after, _) in enumerate(found, 1) for v, u in zip(before, after)]


def test_a_direction_gets_its_length_from_its_gradient():
    found = steps_of(3)
    assert max(lengths_differ(found)) < 1e2 * 28 * 2.2e-16  # Sums of 28 squares.
    before, after, _ = found[0]
    assert all(torch.dot(v, u) < 0.999 * v.norm() * u.norm() for v, u in zip(before, after))  # It is another one.


def test_each_layer_has_a_damping_of_its_own_scale():
    """A loss that is 1,000 times as large turns no direction, and with an absolute damping it does."""
    def turned(**options):
        torch.manual_seed(5)
        plain = steps_of(1, **options)
        torch.manual_seed(5)
        large = steps_of(1, factor=1e3, **options)
        return max(1 - float(torch.dot(u, w) / u.norm() / w.norm())
                   for u, w in zip(plain[0][1], large[0][1]))
    assert turned() < 1e2 * 28 * 2.2e-16 < 1e-3 < turned(damping=1e-3)
    assert steps_of(1)[0][2].damping == 0


class Adamant(torch.optim.SGD):
    """An optimizer that says of itself what those say that divide by the size of gradients."""

    def __init__(self, parameters, lr, eps):
        super().__init__(parameters, lr)
        self.param_groups[0]["eps"] = eps


def length_behind(make, **options):
    model = nn.Linear(3, 2)
    return dkfac.attach(model, make(model.parameters()), **options).options.step_length


@pytest.mark.parametrize("make, rule", [
    (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 2), (lambda p: dkfac.LARS(p, 0.1), 2),
    (torch.optim.AdamW, 4), (torch.optim.RMSprop, 4), (lambda p: Adamant(p, 0.1, 1e-8), 4)])
def test_steps_leave_the_gradient_gradually_before_an_optimizer_that_divides_by_its_size(make, rule):
    assert length_behind(make) == rule
    assert length_behind(make, step_length="auto") == rule
    assert length_behind(make, step_length="gradient") == 2
    assert length_behind(make, kl_clip=1e-3) == 0


def test_an_update_of_adamw_leaves_the_gradient_gradually():
    for update, rule, name in (("momentum", 2, "gradient"), ("adamw", 4, "gradual")):
        kfac = dkfac.KFAC(nn.Linear(3, 2), 0.1, update=update).preconditioner
        assert kfac.options.step_length == rule and f"step_length={name}" in kfac.summary()


def test_a_kl_clip_alone_is_the_length():
    assert min(lengths_differ(steps_of(1, kl_clip=1e-9))) > 0.5
    assert min(lengths_differ(steps_of(1, step_length="none"))) > 0.01
    with pytest.raises(ValueError, match="kl_clip and step_length"):
        steps_of(1, kl_clip=1e-3, step_length="gradient")


@pytest.mark.parametrize("early, rebuilt", [(True, [1, 2, 3, 5, 8, 12, 18]), (False, [1, 21])])
def test_the_first_inverses_are_soon_replaced(early, rebuilt):
    given = {} if early else {"early_refreshes": False}
    found = steps_of(21, statistics_interval=1, inverse_interval=20, **given)
    assert [at for at, (_, _, report) in enumerate(found, 1) if report.inverses_refreshed] == rebuilt
