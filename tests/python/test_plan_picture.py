"""The picture that `python -m dkfac.report` draws of a plan."""
import json
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

from dkfac.report import __main__ as command


def small_plan(ranks=(1, 2, 4)):
    """What 'dkfac plan --scaling --json' writes, as far as it is drawn: K-FAC has no row on one rank."""
    def strategies(count):
        rows = [{"name": "sgd", "seconds": 0.01 * count ** 0.5}]
        return rows + [{"name": "kfac 20/100", "seconds": 0.02}] * (count > 1)
    return {"what": "plan", "model": "resnet50", "batch": 32, "device": "h100", "collectives": "nccl",
            "strategies": strategies(2), "scaling": [{"ranks": count, "strategies": strategies(count)} for count in ranks]}


def test_a_plan_is_drawn_beside_its_file(tmp_path, capsys):
    from dkfac.report import _plan
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(small_plan()))
    assert command.main([str(file)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "plan.svg")]
    root = ElementTree.parse(tmp_path / "plan.svg").getroot()
    shown = " ".join(root.itertext())
    for part in ("sgd", "kfac 20/100", "estimate", "resnet50, 32 samples a rank, h100"):
        assert part in shown
    assert _plan.seconds_of(small_plan(), "kfac 20/100") == [(2, 0.02), (4, 0.02)]
    assert _plan.efficiency_of(small_plan(), "sgd") == [(1, 1), (2, pytest.approx(0.5 ** 0.5)), (4, 0.5)]


def test_a_plan_of_one_number_of_ranks_is_refused(tmp_path, capsys):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(small_plan(ranks=(8,))))
    assert command.main([str(file)]) == 1
    assert "--scaling" in capsys.readouterr().err
    file.write_text(json.dumps(small_plan()))
    assert command.main([str(file), "--out", str(tmp_path / "a.html")]) == 1
    assert ".svg" in capsys.readouterr().err
