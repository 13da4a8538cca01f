"""The command line: what it accepts, how it refuses, what it says."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
from pathlib import Path
from typing import get_args

import click
import pandas as pd
import pytest
from click.testing import CliRunner, Result

import cotune
from cotune.cli import commands as command_line
from cotune.cli import options
from cotune.cli.commands import Stopped, cli
from cotune.cli.comparison import Plan
from tests.parts import iris

QUICK = ("--learner", "decision_tree", "--trials", "2", "--folds", "3", "--processes", "1")
COMMANDS = list(cli.commands)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty working directory with a small file in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTUNE_DEBUG", raising=False)
    iris(60).to_csv("iris.csv", index=False)
    return tmp_path


@pytest.fixture
def no_work(monkeypatch) -> list[tuple[Plan, str, Path]]:
    """Notes the runs that would be started, and starts none."""
    started: list[tuple[Plan, str, Path]] = []

    def start(plan: Plan, method: str, run: Path, quiet: bool) -> None:
        started.append((plan, method, run))
        raise cotune.FederationError("not in this test")

    monkeypatch.setattr(Plan, "start", start)
    return started


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="cotune")


def refusal(*arguments: str, code: int) -> str:
    """The one line with which the command refuses."""
    result = run(*arguments, "--quiet")
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("cotune: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example(command):
    shown = run(command, "--help").stdout
    assert "Example" in shown
    assert f"cotune {command}" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_help_lists_commands_in_the_order_of_use():
    shown = run("--help").stdout
    assert sorted(COMMANDS, key=lambda name: shown.index(f"  {name} ")) == COMMANDS


def test_the_spellings_in_help_are_those_of_the_library():
    from cotune.methods.exponentiated import StepSizes
    from cotune.methods.halving import WRAPPERS
    from cotune.methods.surfaces import SURFACES
    from cotune.party.train.network import Objective
    from cotune.problem import METRICS
    from cotune.space.search import SAMPLERS
    from cotune.space.surrogate import SURROGATES

    assert tuple(METRICS) == options.METRICS
    assert SAMPLERS == options.SAMPLERS
    assert SURFACES == options.SURFACES
    assert SURROGATES == options.SURROGATES
    assert tuple(WRAPPERS) == options.WRAPPERS
    assert get_args(Objective) == options.OBJECTIVES
    assert get_args(StepSizes) == options.STEP_SIZES
    shown = " ".join(run("tune", "--help").stdout.split())
    assert ", ".join(cotune.learner_names()) in shown


def test_the_version():
    assert run("--version").stdout == f"cotune, version {cotune.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_the_shell(shell):
    assert "_COTUNE_COMPLETE" in run("completion", shell).stdout


def test_learners_complete():
    context = click.Context(command_line.tune)
    option = next(option for option in command_line.tune.params if option.name == "learners")
    assert [item.value for item in option.shell_complete(context, "h")] == ["hgb"]


# What options become


def test_options_reach_simulate_and_tune(folder, no_work):
    arguments = """
        tune iris.csv --target species --parties 5 --split dirichlet:0.5 --seed 7
        --learner hgb --learner svm --trials 9 --folds 4 --metric f1 --space paper
        --fix hgb.max_iter=50 --fix svm.kernel=rbf --fix hgb.learning_rate=1e-1
        --drop id --classes a,b --weights equal --compare-by parties --scaling none
        --judge federated
        --sampler random --max-rounds 20 --max-seconds 1.5
        --quorum 0.8 --timeout 60 --processes 2 --run here --merge-every 5
    """
    run(*arguments.split())
    ((plan, method, where),) = no_work
    assert (method, where) == ("dash", Path("here"))
    assert plan.data == [str(folder / "iris.csv")]
    assert plan.federation == {
        "target": "species",
        "parties": 5,
        "split": "dirichlet:0.5",
        "seed": 7,
        "quorum": 0.8,
        "timeout": 60.0,
        "processes": 2,
    }
    assert plan.settings == {
        "learners": ("hgb", "svm"),
        "trials": 9,
        "folds": 4,
        "metric": "f1",
        "task": None,
        "seed": 7,
        "space": "paper",
        "fixed": {"hgb": {"max_iter": 50, "learning_rate": 0.1}, "svm": {"kernel": "rbf"}},
        "drop": ("id",),
        "classes": ("a", "b"),
        "weights": "equal",
        "compare_by": "parties",
        "judge": "federated",
        "scaling": "none",
        "train": True,
        "merge_every": 5,
        "holdout": None,
        "finalists": None,
        "privacy": "plain",
        "noise": None,
        "clip": None,
        "delta": 1e-5,
        "fits": None,
        "seconds": 1.5,
        "bytes": None,
    }
    assert plan.options == {"sampler": "random", "max_rounds": 20}
    assert plan.options_of("dash") == {"sampler": "random", "rounds": 20}
    assert plan.options_of("fedex") == {"max_rounds": 20}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("flora", {}),
        ("flora --surface mplm --single-shot", {"surface": "mplm", "single_shot": True}),
        ("flora --few-shot 4 --repeats 2", {"few_shot": 4, "repeats": 2}),
        ("fedex --wrapper rs --rounds 90 --arms 9", {"wrapper": "rs", "rounds": 90, "arms": 9}),
        ("flora --no-pruning --surrogate forest", {"pruning": False, "surrogate": "forest"}),
        ("flora --free-pairs --keep 3", {"free_pairs": True, "keep": 3}),
        ("flora --surface sgm+u --disclose", {"surface": "sgm+u", "disclose": True}),
        ("flora --wasserstein --sampler gp", {"wasserstein": True, "sampler": "gp"}),
        ("flora --free-pairs --no-pruning", {"free_pairs": True, "pruning": False}),
        ("flora --no-reshuffle", {"reshuffle": False}),
        ("flash --inner lbm --tolerance 0.1", {"inner": "lbm", "tolerance": 0.1}),
        ("multishot --sampler random --until 0.2", {"sampler": "random", "until": 0.2}),
        ("central", {}),
        ("central --sampler grid", {"sampler": "grid"}),
    ],
)
def test_the_options_of_a_method_reach_it(folder, no_work, arguments, expected):
    run("tune", "iris.csv", "--method", *arguments.split())
    ((plan, method, _),) = no_work
    assert method == arguments.split()[0]
    assert plan.options_of(method) == expected
    assert plan.settings["scaling"] == "standard"


def test_a_run_is_named_after_its_data_and_method_by_default(folder, no_work):
    run("tune", "sklearn:digits", "--method", "defaults")
    ((_, _, where),) = no_work
    assert where.parent == Path("runs")
    assert where.name.endswith("-digits-defaults")


def test_a_comparison_gives_each_method_the_options_it_has(folder, no_work):
    run("compare", "iris.csv", "--sampler", "random")
    ((plan, _, _),) = no_work
    assert plan.methods == ["defaults", "dash"]
    assert plan.options_of("defaults") == {}
    assert plan.options_of("dash") == {"sampler": "random"}


def test_tune_trains_unless_told_not_to_and_compare_only_if_told_so(folder, no_work):
    for command in ("tune", "tune --no-train", "compare", "compare --train"):
        run(*f"{command} iris.csv".split())
    assert [plan.settings["train"] for plan, _, _ in no_work] == [True, False, False, True]


def test_a_plan_survives_its_file(folder):
    plan = Plan(["a.csv"], ["dash"], {"parties": 3}, {"fixed": {"hgb": {"max_iter": 5}}}, {})
    plan.save(folder / "new")
    assert Plan.load(folder / "new") == plan


# Bad usage: exit code 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("tune", "give DATA (files, sklearn:NAME) or --federation KIT"),
        ("tune sklearn:iris --federation anna", "leave sklearn:iris out"),
        ("tune --federation anna --parties 3", "--parties is decided at the sites"),
        ("tune --federation anna", "there is no kit in"),
        ("tune iris.csv --trails 3", "No such option '--trails'"),
        ("tune iris.csv --folds three", "'three' is not a valid integer"),
        ("tune iris.csv --folds 1", "cross-validation needs at least 2"),
        ("tune iris.csv --parties 0", "at least 1 party, not 0"),
        ("tune iris.csv --processes 0", "x>=1"),
        ("tune iris.csv --seed -1", "x>=0"),
        ("tune iris.csv --trials 0", "give a number above 0"),
        ("tune iris.csv --quorum 2", "a share of parties in (0, 1]"),
        ("tune iris.csv --split foo", "Known: iid, dirichlet:ALPHA"),
        ("tune iris.csv --split dirichlet:-1", "must be a number above 0"),
        ("tune iris.csv iris.csv --split iid", "nothing to split"),
        ("tune iris.csv --method dahs", "did you mean 'dash'?"),
        ("compare iris.csv --method dash --method dahs", "did you mean 'dash'?"),
        ("tune iris.csv --method defaults --sampler random", "--sampler is not an option"),
        ("compare iris.csv --method dash --method fedex", "with --metric"),
        ("tune iris.csv --surface mplm", "--surface is not an option of dash: omit it"),
        ("tune iris.csv --method dash --single-shot", "--single-shot is not an option of dash"),
        ("tune iris.csv --method flora --until 0.2", "--until is not an option of flora"),
        ("tune iris.csv --method flora --inner rm", "--inner is not an option of flora"),
        ("tune iris.csv --method flash --few-shot 4", "--few-shot is not an option of flash"),
        ("tune iris.csv --method central --until 0.2", "--until is not an option of central"),
        ("compare iris.csv --single-shot", "--single-shot is not an option of defaults, dash"),
        ("tune iris.csv --method flora --surface alpm", "'alpm' is not one of"),
        ("tune iris.csv --method flora --few-shot 0", "x>=1"),
        ("tune iris.csv --method flash --tolerance -1", "x>=0"),
        ("tune iris.csv --scaling robust", "'robust' is not one of"),
        ("tune iris.csv --learner hbg", "did you mean 'hgb'?"),
        ("tune iris.csv --metric acuracy", "did you mean 'accuracy'?"),
        ("tune iris.csv --metric rmse --task classification", "not one for classification"),
        ("tune iris.csv --fix hgb", "write LEARNER.PARAM=VALUE"),
        ("tune iris.csv --fix hbg.max_iter=3", "did you mean 'hgb'?"),
        ("tune iris.csv --learner hgb --fix hgb.max_itr=3", "did you mean 'max_iter'?"),
        ("tune iris.csv --learner svm --fix svm.C=1e99", "parameter 'C' must be a number from"),
        ("tune iris.csv --learner svm --fix svm.C=NaN", "not nan"),
        ("tune iris.csv --holdout 0.95", "0.95 is not in the range 0<=x<=0.9"),
        ("tune iris.csv --learner svm --merge-every 5", "merge_every is about boosted trees"),
        ("tune iris.csv --no-train --merge-every 5", "merge_every is about training"),
        ("tune iris.csv --run iris.csv", "give another with --run"),
        ("compare iris.csv --run iris.csv", "give another with --run"),
        ("resume nothing", "no run in nothing"),
        ("--bogus", "No such option '--bogus'"),
    ],
)
def test_bad_usage_is_one_line_that_names_the_fix(folder, arguments, said):
    assert said in refusal(*arguments.split(), code=2)
    assert sorted(os.listdir()) == ["iris.csv"] or os.listdir("runs") == []


def test_a_folder_that_cannot_be_written_is_refused(folder, monkeypatch):
    def denied(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", denied)
    said = refusal("tune", "iris.csv", *QUICK, "--run", "locked", code=2)
    assert "locked cannot be written (Permission denied)" in said


def test_an_unknown_command_is_refused():
    result = run("tnue")
    assert result.exit_code == 2
    assert result.stderr.startswith("cotune: No such command 'tnue'. Did you mean 'tune'?")


# Bad data: exit code 3


def damaged(column: str, value: object) -> pd.DataFrame:
    frame = iris(60).astype({column: object})
    frame.loc[7, column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "options", "said"),
    [
        (iris(60), "--target tarket", "did you mean 'target'?"),
        (iris(60).assign(target="a"), "", "one class only"),
        (damaged("target", None), "", "is missing in 1 of 60 rows"),
        (damaged("petal width (cm)", "inf"), "", "'petal width (cm)' has infinite values"),
        (damaged("petal width (cm)", "-inf"), "", "has infinite values"),
        (iris(10), "--folds 5 --parties 3", "fewer than the 5 folds"),
        (iris(2).assign(target=["a", "b"]), "--parties 3", "use 2 parties or fewer"),
        (iris(60), "--split by:city", "no column 'city'"),
        (
            iris(60).assign(target=list("abcdefghij" * 6)),
            "--metric rmse",
            "regression needs numbers",
        ),
    ],
)
def test_bad_data_is_one_line_that_names_the_fix(folder, frame, options, said):
    frame.to_csv("bad.csv", index=False)
    assert said in refusal("tune", "bad.csv", *options.split(), code=3)
    assert list(Path("runs").glob("*")) == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.csv", None, "there is no such file"),
        ("empty.csv", b"", "the file is empty"),
        ("noise.csv", bytes(range(128, 256)), "not UTF-8 text"),
        ("torn.parquet", b"PAR1 and no more", "cannot be read"),
        ("table.xlsx", b"", "unknown file type '.xlsx'"),
    ],
)
def test_an_unreadable_file_is_one_line_that_names_the_fix(folder, name, content, said):
    if content is not None:
        Path(name).write_bytes(content)
    line = refusal("tune", name, code=3)
    assert name in line
    assert said in line


def test_a_party_with_too_few_rows_is_named(folder):
    iris(3).to_csv("village.csv", index=False)
    said = refusal("tune", "iris.csv", "village.csv", "--folds", "5", code=3)
    assert "village: 3 rows are fewer than the 5 folds" in said


@pytest.mark.parametrize("command", [("tune",), ("compare", "--method", "defaults")])
def test_doubtful_columns_are_one_line_each_on_standard_error(folder, command):
    iris(60).assign(patient=range(60), same="x").to_csv("rows.csv", index=False)
    methods = () if command == ("tune",) else ("--method", "dash")
    done = run(*command, *methods, "rows.csv", *QUICK, "--run", "mine", "--quiet", "--json")
    assert done.exit_code == 0
    json.loads(done.stdout)
    assert done.stderr.splitlines() == [
        "cotune: warning: column 'patient' has another whole number in each row: if it is an "
        "identifier, drop it (--drop patient)",
        "cotune: warning: column 'same' has one value only, from which nothing can be learnt: "
        "drop it (--drop same)",
    ]
    again = run("tune", "rows.csv", *QUICK, "--drop", "patient", "--drop", "same", "--quiet")
    assert again.stderr == ""


# Everything else that ends a command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (cotune.FederationError("too few parties"), 4, "cotune: too few parties\n"),
        (OSError(errno.ENOSPC, "No space", "runs/x/a"), 4, "the disk is full at runs/x/a: free"),
        (OSError(errno.EROFS, "Read-only", "runs/x/a"), 4, "runs/x/a cannot be written: make"),
        (KeyError("secret"), 1, "unexpected error: KeyError: 'secret'; run with `cotune --debug`"),
        (Stopped(signal.SIGINT), 130, "cotune: stopped"),
        (Stopped(signal.SIGTERM), 143, "cotune: stopped"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(folder, monkeypatch, error, code, said):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Plan, "start", fail)
    assert said in refusal("tune", "iris.csv", code=code)


def test_debug_shows_the_traceback_too(folder, monkeypatch):
    monkeypatch.setattr(Plan, "start", lambda *_: 1 / 0)
    result = run("--debug", "tune", "iris.csv")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "unexpected error: ZeroDivisionError" in result.stderr.splitlines()[-1]


def test_ctrl_c_in_a_run_says_how_to_go_on(folder, monkeypatch):
    def interrupted(plan: Plan, method: str, where: Path, quiet: bool) -> None:
        where.mkdir()
        (where / "run.json").touch()
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(Plan, "start", interrupted)
    said = refusal("tune", "iris.csv", "--run", "mine", code=130)
    assert "`cotune resume mine`" in said


def test_ctrl_c_that_a_library_turned_into_another_error_is_ctrl_c(folder, monkeypatch):
    """As Cython does where an import is interrupted."""

    def interrupted(plan: Plan, method: str, where: Path, quiet: bool) -> None:
        where.mkdir()
        (where / "run.json").touch()
        try:
            command_line._stop(signal.SIGINT, None)
        except Stopped:
            raise ValueError("not a valid buffer format") from None

    monkeypatch.setattr(command_line, "_stops", [])
    monkeypatch.setattr(Plan, "start", interrupted)
    said = refusal("tune", "iris.csv", "--run", "mine", code=130)
    assert "`cotune resume mine`" in said


def test_a_finished_run_survives_the_refusal_of_another_method(folder, monkeypatch):
    def start(plan: Plan, method: str, where: Path, quiet: bool) -> None:
        if method == "dash":
            raise cotune.UsageError("not like this")
        where.mkdir()
        (where / "outcome.json").touch()

    monkeypatch.setattr(Plan, "start", start)
    refusal("compare", "iris.csv", "--run", "both", code=2)
    assert Path("both/defaults/outcome.json").exists()


# Runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a finished run on data with gaps."""
    home = tmp_path_factory.mktemp("finished")
    damaged("petal width (cm)", None).to_csv(home / "gaps.csv", index=False)
    result = run("tune", str(home / "gaps.csv"), *QUICK, "--run", str(home / "runs/one"), "--json")
    assert result.exit_code == 0, result.output
    return home / "runs/one"


def test_missing_feature_values_are_no_error(finished):
    assert json.loads(run("show", str(finished), "--json").stdout)["fits"] == 18


def test_the_json_of_a_run_has_the_methods_own_report(folder):
    arguments = ("tune", "iris.csv", *QUICK, "--quiet", "--json")
    plain = run(*arguments, "--method", "central")
    counted = run(*arguments, "--method", "multishot", "--until", "1", "--scaling", "none")
    assert (plain.exit_code, counted.exit_code) == (0, 0), counted.output
    assert json.loads(plain.stdout)["report"] == {}
    assert json.loads(counted.stdout)["report"] == {"trainings": 1, "reached": True}


def test_show_prints_tables(finished):
    result = run("show", str(finished), "--trials")
    assert result.exit_code == 0
    assert "balanced accuracy" in result.stdout
    assert "max_depth" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_show_lists_trials_in_json_when_asked(finished):
    shown = json.loads(run("show", str(finished), "--trials", "--json").stdout)
    assert shown["trials"] == len(shown["all_trials"]) == 2


def test_resuming_a_finished_run_shows_it_again(finished):
    resumed = run("resume", str(finished), "--json", "--quiet")
    assert resumed.stdout == run("show", str(finished), "--json").stdout
    assert json.loads(resumed.stdout)["run"] == str(finished)


def test_a_run_is_not_overwritten(finished):
    data = str(finished.parent.parent / "gaps.csv")
    for command in ("tune", "compare"):
        said = refusal(command, data, *QUICK, "--run", str(finished), code=2)
        assert f"`cotune resume {finished}`" in said
    assert (finished / "outcome.json").exists()


def test_runs_lists_finished_interrupted_and_unreadable_ones(finished, tmp_path):
    for name in ("a", "b", "c"):
        shutil.copytree(finished, tmp_path / name)
    (tmp_path / "b/outcome.json").unlink()
    (tmp_path / "c/run.json").write_text("{")
    a, b, c = json.loads(run("runs", str(tmp_path), "--json").stdout)
    assert (a["state"], a["learner"], a["data"]) == ("finished", "decision_tree", "gaps.csv")
    assert (b["state"], b["rounds"], b["value"]) == ("interrupted", a["rounds"], None)
    assert c["state"] == "unreadable"
    assert "interrupted" in run("runs", str(tmp_path)).stdout
    assert f"cotune resume {tmp_path / 'b'}\n" in run("show", str(tmp_path / "b")).stdout


def test_a_run_that_is_being_worked_on_is_running(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "a")
    (tmp_path / "a/outcome.json").unlink()
    with (tmp_path / "a/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (listed,) = json.loads(run("runs", str(tmp_path), "--json").stdout)
        said = refusal("resume", str(tmp_path / "a"), code=2)
    assert listed["state"] == "running"
    assert "by another process" in said


def test_no_runs_says_how_to_start_one(folder):
    assert "`cotune demo` starts one" in run("runs").stdout
    assert run("runs", "--json").stdout == "[]\n"


def test_show_of_no_run_is_refused(folder):
    result = run("show", "nothing")
    assert result.exit_code == 2
    assert "there is no run in nothing" in result.stderr


# Models


def test_predict_writes_a_row_for_each_row(finished, tmp_path):
    data = str(finished.parent.parent / "gaps.csv")
    printed = run("predict", str(finished), data)
    assert printed.exit_code == 0, printed.output
    lines = printed.stdout.splitlines()
    assert lines[0] == "prediction,probability 0,probability 1,probability 2"
    assert len(lines) == 1 + len(pd.read_csv(data))
    for name in ("out.csv", "out.parquet"):
        assert run("predict", str(finished), data, "--out", str(tmp_path / name)).exit_code == 0
    written = pd.read_csv(tmp_path / "out.csv")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out.parquet"), written)
    assert (written["prediction"] == pd.read_csv(data)["target"]).mean() > 0.8


def test_predict_refuses_what_it_cannot_do(finished, folder):
    data = str(finished.parent.parent / "gaps.csv")
    for arguments, said in (
        ((str(finished), data, "--out", "out.txt"), "a file that ends in .csv or .parquet"),
        ((str(finished), "sklearn:wine"), "lacks columns of the model"),
        (("nothing", data), "there is no model in nothing"),
    ):
        result = run("predict", *arguments)
        assert result.exit_code in (2, 3)
        assert said in result.stderr


def test_evaluate_shows_what_joining_gained(folder):
    run("tune", "iris.csv", *QUICK, "--holdout", "0.3", "--run", "one", "--quiet")
    shown = json.loads(run("evaluate", "one", "--json", "--quiet").stdout)
    assert [party["party"] for party in shown["parties"]] == ["party-1", "party-2", "party-3"]
    assert shown["total"]["rows"] == 18
    assert shown["total"]["gained"] == shown["total"]["joint"] - shown["total"]["own"]
    assert "gained" in run("evaluate", "one", "--quiet").stdout


def test_evaluate_without_rows_set_aside_says_how_to_get_them(finished):
    assert "tune with --holdout" in refusal("evaluate", str(finished), code=2)


def test_a_run_without_training_has_no_model(folder):
    result = run("tune", "iris.csv", *QUICK, "--no-train", "--run", "one", "--json", "--quiet")
    assert json.loads(result.stdout)["model"] is None
    assert "there is no model" in run("predict", "one", "iris.csv").stderr
