"""Scores, places, and what sweep.json says."""
import json
import math
import pathlib

import pytest

from dkfac.sweep._failure import Failure
from dkfac.sweep._picture import draw
from dkfac.sweep._points import Base, Point
from dkfac.sweep._spec import Pruner, Spec
from dkfac.sweep._state import Run, State, check_same, ranking, read_result, score_of, to_json
from dkfac.sweep._table import columns_of, line_of, markdown_text, summary_of, terminal_text

EPOCHS = [{"test_accuracy": 0.5, "train_loss": 3}, {"test_accuracy": 0.75, "train_loss": 1},
          {"test_accuracy": 0.25, "train_loss": 2}]


@pytest.mark.parametrize("count, metric, score, expected", [
    (2, "test_accuracy", "last", 0.75), (3, "test_accuracy", "last", 0.25), (3, "test_accuracy", "best", 0.75),
    (3, "test_accuracy", "mean", 0.5), (3, "train_loss", "best", 1), (4, "test_accuracy", "last", None),
    (0, "test_accuracy", "mean", None), (1, "test_loss", "last", None)])
def test_scores_are_those_of_the_first_epochs(count, metric, score, expected):
    found = score_of(EPOCHS, count, Spec("s", metric=metric, score=score))
    assert found == expected if expected is not None else math.isnan(found)


def state_of(*last, pruner=Pruner("halving", 1, 2), metric="test_accuracy"):
    """Runs with a score each, as (epochs, score)."""
    spec = Spec("s", configs=[pathlib.Path("a.toml")], pruner=pruner, metric=metric)
    runs = [Run(Point(f"run-{at}", 0, {"lr.lr": str(at)}, 2), scores={epochs: score},
                result={"epochs": EPOCHS[:epochs], "best_accuracy": 0.75, "train_seconds": 1.5})
            for at, (epochs, score) in enumerate(last)]
    return State(spec, [Base("[lr]\nlr = 0.5\n", {"lr.lr": 0.5}, ())], [1, 2], runs)


def test_ranks_by_epochs_then_score_and_failures_last():
    state = state_of((1, 0.9), (2, 0.8), (2, 0.85), (2, 0.99))
    state.runs[3].status = "failed"
    assert [run.point.name for run in ranking(state)] == ["run-2", "run-1", "run-0", "run-3"]
    state = state_of((2, 0.5), (2, math.nan), (2, 0.9), (2, 0.5), pruner=Pruner())
    assert [run.point.name for run in ranking(state)] == ["run-2", "run-0", "run-3", "run-1"]
    state.spec.metric = "test_loss"
    assert [run.point.name for run in ranking(state)] == ["run-0", "run-3", "run-2", "run-1"]


def test_json_is_for_readers(tmp_path, program):
    state = state_of((1, 0.125), (2, math.nan))
    state.runs[1].status, state.runs[1].error, state.runs[1].exit_code = "failed", 'ERROR "quoted"', 80
    text = to_json(state, "0.1.0")
    assert "NaN" not in text
    runs = json.loads(text)["runs"]
    assert runs[0] == {
        "name": "run-0", "place": 1, "config": "a.toml", "settings": {"lr.lr": "0"}, "status": "waiting", "epochs": 1,
        "scores": {"1": 0.125}, "test_accuracy": 0.5, "test_loss": None, "train_loss": 3, "best_accuracy": 0.75,
        "train_seconds": 1.5}
    assert (runs[1]["scores"], runs[1]["error"], runs[1]["exit_code"]) == ({"2": None}, 'ERROR "quoted"', 80)
    file = tmp_path / "sweep.json"
    file.write_text(text)
    check_same(file, state, program)
    state.runs[0].point.settings = {"lr.lr": "3"}
    with pytest.raises(Failure, match="another sweep"):
        check_same(file, state, program)


def test_a_run_without_an_epoch_has_no_accuracy():
    """Which the result of the program has as 0."""
    state = state_of((1, 0.5), (0, math.nan))
    state.runs[1].status, state.runs[1].result["best_accuracy"] = "failed", 0.0
    cells, = (column.cells for column in columns_of(state) if column.bottom == "accuracy, %")
    assert cells == ["75.00", "-"]


def test_points_may_be_added_where_runs_end_apart_from_each_other(tmp_path, program):
    file = tmp_path / "sweep.json"
    state = state_of((1, 0.125), (1, 0.25), pruner=Pruner())
    last = state.runs.pop()
    file.write_text(to_json(state, "0.1.0"))
    state.runs.append(last)
    check_same(file, state, program)
    state.runs.reverse()  # Run 1 would be another one.
    with pytest.raises(Failure, match="another sweep"):
        check_same(file, state, program)
    state.runs.reverse()
    file.write_text(to_json(state, "0.1.0"))
    state.runs.pop()
    with pytest.raises(Failure, match="another sweep"):
        check_same(file, state, program)
    state.spec.pruner = Pruner("halving", 1, 2)
    file.write_text(to_json(state, "0.1.0"))
    check_same(file, state, program)
    state.runs.append(last)
    with pytest.raises(Failure, match="another sweep"):
        check_same(file, state, program)


def test_a_configuration_of_another_content(tmp_path, program):
    file = tmp_path / "sweep.json"
    state = state_of((1, 0.125))
    file.write_text(to_json(state, "0.1.0"))
    state.bases = [Base("", {"lr.lr": 0.25}, ())]
    with pytest.raises(Failure, match="'a.toml' has changed.*lr.lr is 0.25 and was 0.5.*--force"):
        check_same(file, state, program)
    # The data may have moved, and a new key has its default.
    state.bases = [Base("", {"lr.lr": 0.5, "data.path": "moved", "run.seed": 1}, ())]
    check_same(file, state, program)
    state.bases = [Base("", {"lr.lr": 0.5, "run.seed": 2}, ())]
    with pytest.raises(Failure, match="run.seed is 2 and was 1"):
        check_same(file, state, program)


def test_results(tmp_path):
    run = state_of((1, 0.5)).runs[0]
    (tmp_path / "result.json").write_text('{"epochs": []}')
    read_result(tmp_path, run)
    assert run.epochs == []
    for text in ("{", "[]", "{}", '{"epochs": [1]}', '{"epochs": null}'):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(Failure) as caught:
            read_result(tmp_path, run)
        assert caught.value.code == 65


def test_table_and_summary():
    state = state_of((2, 0.75), (1, 0.5))
    state.runs[0].status, state.runs[1].status = "ok", "dropped"
    assert markdown_text(columns_of(state)) == (
        "| run | lr | epochs | test_accuracy last | best accuracy, % | train seconds | became |\n"
        "|---|---:|---:|---:|---:|---:|---:|\n"
        "| run-0 | 0 | 2 | **75.00 %** | 75.00 | 1.5 | ok |\n"
        "| run-1 | 1 | 1 | 50.00 % | 75.00 | 1.5 | dropped |\n")
    lines = terminal_text(columns_of(state)).splitlines()
    assert len(lines) == 5 and lines[3].startswith("run-0") and "75.00 % *" in lines[3]
    assert summary_of(state) == ("Best by the last test_accuracy: run-0 (lr 0): 75.00 % after 2 epochs.\n"
                                 "3 epochs were trained; all runs to their ends would have taken 4.\n")
    state.runs[1].status, state.runs[1].error = "failed", "why"
    assert "Failed: run-1 (lr 1): why" in summary_of(state) and line_of(state, state.runs[1]).endswith("why")


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "sweep.svg"
    draw(state_of((2, 0.75), (1, 0.5)), file)
    text = file.read_text()
    for part in ("</svg>", "compared after 1 epoch", "compared after 2 epochs", "run-0: lr 0", "lr.lr"):
        assert part in text
    empty = state_of((1, math.nan))
    empty.runs[0].result = {}
    draw(empty, file)
    assert "</svg>" in file.read_text() and "compared" not in file.read_text()
