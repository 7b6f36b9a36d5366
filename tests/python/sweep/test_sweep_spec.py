"""The file of a sweep: what it gives, and what is refused with the line and the key."""
import pathlib

import pytest

from dkfac.sweep import _spec
from dkfac.sweep._failure import Failure
from dkfac.sweep._toml import line_of, same, text_of, value_of


@pytest.fixture
def parsed(tmp_path, program):
    def parse(text, head='config = "a.toml"\n'):
        path = tmp_path / "s.toml"
        path.write_text(f"[sweep]\n{head}{text}")
        return _spec.parse(path, program)
    return parse


def test_dotted_keys_with_and_without_quotes(parsed, tmp_path):
    quoted = parsed('[grid]\n"lr.lr" = [0.1]\n"run.seed" = [1]\n')
    plain = parsed("[grid]\nlr.lr = [0.1]\nrun.seed = [1]\n")
    assert quoted.grid == plain.grid == {"lr.lr": ["0.1"], "run.seed": ["1"]}
    assert (quoted.configs, quoted.name) == ([tmp_path / "a.toml"], "s")
    assert quoted.pruner.kind == "none" and quoted.slots.parallel == 1


def test_seeds_are_exact(parsed):
    spec = parsed('[grid]\nrun.seed = [9007199254740993, "18446744073709551615"]\n')
    assert spec.grid["run.seed"] == ["9007199254740993", "18446744073709551615"]


@pytest.mark.parametrize("text, line, parts", [
    ("[grid]\nlr.lrr = [1]\n", 4, ["unknown key 'lr.lrr'", "did you mean 'lr.lr'"]),
    ("[grid]\nlr.lr = 1\n", 4, ["list of values"]),
    ("[grid]\nlr.lr = [-1]\n", 4, ["lr.lr = -1 is not allowed", "a number"]),
    ("[grid]\nlr.lr = [5, 5.0]\n", 4, ["twice"]),
    ("[grid]\nnonsense = {}\n", 4, ["nonsense"]),
    ("[grid]\nlr = {}\n", 4, ["'lr'"]),
    ('[set]\n"lr.lr" = 1\nlr.lr = 2\n', 4, ["lr.lr twice"]),
    ("[random]\nlr.lr = {uniform = [0.1, 1]}\n", 3, ["count"]),
    ("[random]\ncount = 0\n", 4, ["count", "[1, 10000]"]),
    ("[random]\ncount = 1\nlr.lr = {log_uniform = [0, 1]}\n", 5, ["0 < low"]),
    ("[random]\ncount = 1\nlr.lr = {uniform = [-1e308, 1e308]}\n", 5, ["lr.lr"]),
    ("[random]\ncount = 1\nlr.schedule = {uniform = [0, 1]}\n", 5, ["choice"]),
    ("[[random]]\ncount = 1\n[[random]]\ncount = 1\nlr.lr = 3\n", 7, ["lr.lr"]),
    ("[halving]\nfrist = 1\n", 4, ["frist", "first, eta"]),
    ("[halving]\neta = 1\n", 4, ["halving.eta"]),
    ("[halving]\n[median]\n", 4, ["[median] and [halving]"]),
    ("[median]\neta = 3\n", 4, ["first, runs"]),
    ('[slots]\nhosts = ["a"]\n', 4, ["launcher"]),
    ("[slots]\nparallel = 0\n", 4, ["slots.parallel"]),
    ('[slots]\nranks = 2\nlauncher = "nice"\n', 5, ["slots.ranks = 2", "{ranks}"]),
    ('[slots]\nlauncher = "  "\n', 4, ["blank"]),
    ("[extra]\n", 3, ["'extra' in the file"]),
    ("[grid\n", 3, ["TOML"]),
    ("slots = 3\n", None, ["'slots' in [sweep]"]),
    ('[grid]\nlr.lr = [1]\n[when]\nrun.seed = {"lr.lr" = 1}\n', 6, ["not tried"]),
    ('[grid]\nlr.lr = [1]\n[when]\nlr.lr = {"lr.kind" = 1}\n', 6, ["unknown key 'lr.kind'"]),
    ("[grid]\nlr.lr = [1]\n[tpe]\ncount = 1\n", None, ["[tpe]", "[grid]"]),
    ("[tpe]\ncount = 1\n[halving]\n", None, ["[halving]", "[median]"])])
def test_mistakes(parsed, text, line, parts):
    with pytest.raises(Failure) as caught:
        parsed(text)
    assert caught.value.code == 64
    assert line is None or f"s.toml:{line}: " in str(caught.value)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert "; " in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("head", [
    "", "config = 3\n", 'config = "a"\nname = "a/b"\n', 'config = "a"\nname = ".."\n', 'config = "a"\nname = ""\n',
    'config = "a"\nmetric = "accuracy"\n', 'config = "a"\nscore = "first"\n'])
def test_heads_that_are_none(parsed, head):
    with pytest.raises(Failure):
        parsed("", head)


@pytest.mark.parametrize("condition, allowed", [
    ('{"optimizer.type" = "sgd"}', True), ('{"optimizer.type" = "sgdd"}', False),
    ('{"optimizer.type" = ["sgd", "sgd"]}', False), ('{"lr.lr" = -1}', False), ('{"lr.lr" = [5, 5.0]}', False),
    ('{"run.epochs" = 2.5}', False), ('{"augment.flip" = "on"}', False), ('{"augment.flip" = false}', True)])
def test_conditions_have_values_that_a_key_can_take(parsed, condition, allowed):
    text = f"[grid]\nrun.seed = [1]\n[when]\nrun.seed = {condition}\n"
    if allowed:
        assert parsed(text).when
    else:
        with pytest.raises(Failure, match=r"s.toml:6"):
            parsed(text)


def test_files_that_have_no_end_or_no_bottom(parsed, program, tmp_path):
    with pytest.raises(Failure, match="bytes"):
        _spec.parse(pathlib.Path("/dev/zero"), program)
    with pytest.raises(Failure, match="no file") as caught:
        _spec.parse(tmp_path / "none.toml", program)
    assert caught.value.code == 66
    for deep in ("x = " + "[" * 100000, "[grid]\na" + ".a" * 5000 + " = 1\n"):
        with pytest.raises(Failure) as caught:
            parsed(deep)
        assert len(str(caught.value)) < 500


def test_values_are_as_the_program_takes_them():
    assert [text_of(x) for x in (0.1, 1e-06, 3, True, "word", [[0, 0.0], [1.5, 2]])] == [
        "0.1", "1e-06", "3", "true", "word", "[[0, 0.0], [1.5, 2]]"]
    assert [value_of(text) for text in ("5", "5.0", "word", "true")] == [5, 5.0, "word", True]
    assert same(5, 5.0) and not same(1, True)


def test_lines_are_found_by_their_form():
    text = 'a = 1\n[grid]\n"lr.lr" = [1]\n[grid.run]\nseed = [2]\n[other]\nlr.lr = 3\n'
    assert line_of(text, "grid", "lr.lr") == 3
    assert line_of(text, "grid", "run.seed") == 5
    assert line_of(text, "other", "lr.lr") == 7
    assert line_of(text, "none", "lr.lr") is None
