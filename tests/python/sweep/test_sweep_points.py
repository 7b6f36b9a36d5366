"""The points of a search, which a draw, a grid and conditions give."""
import pytest

from dkfac.sweep import _spec
from dkfac.sweep._document import without_phase
from dkfac.sweep._failure import Failure
from dkfac.sweep._points import (Conditions, Point, bases, drawn, label, overrides, points_of, rungs_of, survivors,
                                 unused)
from dkfac.sweep._spec import Draw, Pruner, Spec


@pytest.fixture
def searched(tmp_path, program):
    """The spec and the points of a search over a configuration."""
    def search(text, config="[run]\nepochs = 4\n"):
        (tmp_path / "a.toml").write_text(config)
        (tmp_path / "s.toml").write_text('[sweep]\nconfig = "a.toml"\n' + text)
        spec = _spec.parse(tmp_path / "s.toml", program)
        return spec, points_of(spec, program, bases(spec, program))
    return search


def test_draws_fill_their_range_and_keep_to_it():
    log, whole = Draw("log_uniform", 1e-3, 1), Draw("uniform", 1, 4, whole=True)
    choice = Draw("choice", choices=("a", "b", "c"))
    rates = [float(drawn(log, 7, "lr.lr", index)) for index in range(3000)]
    assert min(rates) >= 1e-3 and max(rates) <= 1
    # A third; five standard deviations of a binomial: 5 sqrt(3000 * 1/3 * 2/3) = 130.
    assert abs(sum(rate < 1e-2 for rate in rates) - 1000) < 130
    assert {drawn(whole, 7, "x", index) for index in range(300)} == {"1", "2", "3", "4"}
    assert {drawn(choice, 7, "x", index) for index in range(300)} == {"a", "b", "c"}
    assert drawn(log, 7, "lr.lr", 5) == drawn(log, 7, "lr.lr", 5)
    assert drawn(log, 7, "lr.lr", 0) != drawn(log, 8, "lr.lr", 0)
    assert drawn(log, 7, "lr.lr", 0) != drawn(log, 7, "lr.lx", 0)
    assert 1e-320 <= float(drawn(Draw("log_uniform", 1e-320, 1e-310), 1, "lr.lr", 0)) <= 1e-310


def test_another_key_changes_no_draw(searched):
    one = "[random]\ncount = 20\nlr.lr = {log_uniform = [1e-3, 1]}\n"
    rates = [point.settings["lr.lr"] for point in searched(one)[1]]
    assert len(set(rates)) == 20
    assert [point.settings["lr.lr"] for point in searched(one + "run.seed = {choice = [1, 2]}\n")[1]] == rates
    assert [point.settings["lr.lr"] for point in searched(one + "seed = 2\n")[1]] != rates


def test_each_draw_with_each_combination(searched):
    _, points = searched("[grid]\nrun.seed = [1, 2]\n[[random]]\ncount = 2\nlr.lr = {uniform = [0, 1]}\n"
                         "[[random]]\ncount = 1\nseed = 5\nlr.lr = {uniform = [1, 2]}\n")
    assert [point.name for point in points] == [f"run-00{number}" for number in range(1, 7)]
    assert [point.settings["run.seed"] for point in points] == ["1", "2"] * 3
    assert len({point.settings["lr.lr"] for point in points}) == 3


def test_keys_without_effect_are_left_out_and_equal_points_run_once(searched):
    spec, points = searched('[grid]\noptimizer.type = ["sgd", "kfac"]\noptimizer.damping = [0.1, 0.2]\n')
    assert sorted((point.settings for point in points), key=str) == [
        {"optimizer.damping": "0.1", "optimizer.type": "kfac"}, {"optimizer.damping": "0.2", "optimizer.type": "kfac"},
        {"optimizer.type": "sgd"}]
    assert unused(spec, points) == []
    spec, points = searched("[grid]\noptimizer.damping = [0.1, 0.2]\n")
    assert [point.settings for point in points] == [{}]
    assert unused(spec, points) == ["optimizer.damping"]


def test_keys_whose_condition_does_not_hold_are_left_out(searched):
    _, points = searched('[grid]\nlr.schedule = ["cosine", "constant"]\nlr.warmup_epochs = [1, 2]\n'
                         '[when]\nlr.warmup_epochs = {"lr.schedule" = "cosine"}\n')
    assert sorted(map(str, (point.settings for point in points))) == sorted(map(str, (
        {"lr.schedule": "cosine", "lr.warmup_epochs": "1"}, {"lr.schedule": "cosine", "lr.warmup_epochs": "2"},
        {"lr.schedule": "constant"})))


@pytest.mark.parametrize("tried, condition, holds", [
    ("5.0", "5", True), ("5", "5.0", True), ("5", "0.5e1", True), ("5", "[1.0, 5]", True), ("5", "5.5", False),
    (None, "0", True), (None, "1", False)])
def test_conditions_compare_values_and_not_texts(searched, tried, condition, holds):
    grid = f"lr.warmup_epochs = [{tried}]\n" if tried else ""
    _, points = searched(f'[grid]\nrun.seed = [7]\n{grid}[when]\nrun.seed = {{"lr.warmup_epochs" = {condition}}}\n')
    assert ("run.seed" in points[0].settings) == holds


def test_keys_of_phases(searched):
    _, points = searched('[grid]\nphase.2.lr.lr = [0.1, 0.2]\n')
    assert [point.settings for point in points] == [{"phase.2.lr.lr": "0.1"}, {"phase.2.lr.lr": "0.2"}]
    assert without_phase("phase.12.lr.lr") == "lr.lr"
    for path in ("lr.lr", "phase.x.lr.lr", "phase.2", "phase..lr.lr"):
        assert without_phase(path) == path


@pytest.mark.parametrize("text, parts", [
    ("[set]\nlr.lr = 1\n[grid]\nlr.lr = [2]\n", ["lr.lr", "[grid]"]),
    ("[set]\nlr.lr = 1\n[tpe]\ncount = 1\nlr.lr = {uniform = [0, 1]}\n", ["lr.lr", "[tpe]"]),
    ("[grid]\nlr.lr = [2]\n[random]\ncount = 1\nlr.lr = {choice = [1]}\n", ["[grid]", "[random]"]),
    ("[random]\ncount = 9999\nlr.lr = {uniform = [0, 1]}\n[grid]\nrun.seed = [1, 2]\n", ["more than 10000"]),
    ("[grid]\nrun.eval_every = [1, 2]\n", ["the point eval_every 2 cannot run", "run.eval_every to 1"])])
def test_what_cannot_run_is_refused(searched, text, parts):
    with pytest.raises(Failure) as caught:
        searched(text)
    assert all(part in str(caught.value) for part in parts), caught.value


def test_rungs_grow_by_eta_up_to_the_end():
    def rungs(pruner, *epochs):
        return rungs_of(Spec("s", pruner=pruner), [Point("", 0, {}, count) for count in epochs])

    assert rungs(Pruner(), 5, 9) == [9]
    assert rungs(Pruner("halving", 1, 3), 9, 9) == [1, 3, 9]
    assert rungs(Pruner("halving", 1, 3), 10) == [1, 3, 9, 10]
    assert rungs(Pruner("hyperband", 1, 3), 10) == [10]
    for pruner, epochs in ((Pruner("halving", 1, 3), (1,)), (Pruner("halving", 1, 3), (9, 8)), (Pruner("median"), (1,))):
        with pytest.raises(Failure):
            rungs(pruner, *epochs)
    assert [survivors(runs, 3) for runs in (18, 8, 1)] == [6, 2, 1]


def test_overrides_and_labels():
    spec = Spec("s", set={"run.epochs": "3", "lr.lr": "1"})
    assert overrides(spec, {"lr.lr": "2"}) == ["run.epochs=3", "lr.lr=2"]
    assert label({"lr.lr": "1", "optimizer.damping": "2"}) == "lr 1, damping 2"
    assert label({"run.name": "a", "model.name": "b"}) == "model.name b, run.name a"
    assert label({}) == "as configured"


def test_selectors_come_before_the_keys_that_depend_on_them(searched, program):
    spec, _ = searched('[tpe]\ncount = 1\noptimizer.damping = {uniform = [0.1, 1]}\n'
                       'optimizer.type = {choice = ["sgd", "kfac"]}\nlr.lr = {uniform = [0, 1]}\n'
                       '[when]\nlr.lr = {"optimizer.damping" = 0.5}\n')
    conditions = Conditions(spec, program, bases(spec, program)[0])
    assert conditions.in_order(sorted(spec.tpe.keys)) == ["optimizer.type", "optimizer.damping", "lr.lr"]
