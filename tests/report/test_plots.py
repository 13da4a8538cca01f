from __future__ import annotations

import pytest

import cotune
from cotune.errors import UsageError
from cotune.report.plots import plot
from tests.parts import federation_of, iris, parts


@pytest.fixture(scope="module")
def outcomes():
    with federation_of(parts(iris())) as federation:
        usual = {"folds": 2, "progress": False, "train": False}
        fedex = cotune.tune(
            federation, "fedex", wrapper="rs", rounds=4, max_rounds=4, arms=2, **usual
        )
        dash = cotune.tune(federation, learners=["decision_tree"], trials=3, **usual)
    return {"fedex": fedex, "dash": dash}


@pytest.mark.parametrize("method", ["fedex", "dash"])
@pytest.mark.parametrize(
    ("kind", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_a_picture_is_written_in_the_kind_that_the_name_says(
    outcomes, method, kind, begins, tmp_path
):
    plot(outcomes[method], tmp_path / f"run.{kind}")
    assert (tmp_path / f"run.{kind}").read_bytes().startswith(begins)


@pytest.mark.parametrize("name", ["run.gif", "nowhere/run.png"])
def test_a_file_that_cannot_be_written_is_refused_first(outcomes, name, tmp_path):
    with pytest.raises(UsageError, match=r"must end in|there is no folder"):
        plot(outcomes["dash"], tmp_path / name)
