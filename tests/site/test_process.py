"""A site keeps its rules, and adds up with the parties of its own federation only."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

from cotune.cli.commands import cli
from cotune.engines.nvflare.kits import create, open_kit
from cotune.engines.nvflare.signature import Signer
from cotune.errors import DataWarning
from cotune.party.differ import Differ
from cotune.party.keys import Keyed
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate
from cotune.privacy.protection import Protection
from cotune.protocol.wire import Refusal, Request, decode_reply, encode
from cotune.site.audit import read
from cotune.site.door import DOOR, Ask, knock
from cotune.site.policy import Policy
from cotune.site.process import RECORD, Site, opened
from tests.engines.real import unpack
from tests.parts import iris, problem_of


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    create(tmp_path / "kits", "localhost:8002", ["north", "west", "east"], "anna")
    for packed in (tmp_path / "kits").glob("*.zip"):
        unpack(packed, tmp_path)
    iris().to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path


def told(site: Site, kits: Path, monkeypatch: pytest.MonkeyPatch, among: tuple[str, ...]) -> object:
    monkeypatch.setenv(DOOR, site.door)
    anna = Signer(kits / "anna", open_kit(kits / "anna", "lead"))
    message = encode(
        Request(
            "run", 1, "masked", Evaluate((Configuration("decision_tree", {}),)),
            keyed=Keyed("session", among, fewest=len(among)),
            protection=Protection(1.0, parties=len(among)),
        )
    )  # fmt: skip
    ask = Ask("call", among[-1], anna.certificate, message, 20.0, anna.sign(message))
    return decode_reply(knock(ask).reply)


def test_the_lead_cannot_invent_parties_that_share_in_the_noise(kits, monkeypatch):
    ghosts = tuple(f"ghost-{number}" for number in range(97))
    with opened(kits / "north", str(kits / "rows.csv"), "target", Policy(fewest=3)) as site:
        refused = told(site, kits, monkeypatch, ("north", "west", "east", *ghosts))
        known = told(site, kits, monkeypatch, ("north", "west", "east"))
    assert refused == Refusal(
        "refused",
        "this party adds up with parties of its federation, and 97 of those named do not belong to "
        "it: use the kits of one federation",
    )
    assert isinstance(known, Refusal)
    assert known.code == "no_problem"  # the names are right, and it goes on to its next question
    outcomes = [entry.outcome for entry in read(kits / "north" / RECORD)]
    assert outcomes[0].startswith("refused: this party adds up with parties of its federation")


def test_the_operator_is_warned_of_doubtful_columns_before_anything_is_asked(kits):
    iris().assign(patient=range(150), same=1.0).to_csv(kits / "rows.csv", index=False)
    with pytest.warns(DataWarning) as caught, opened(kits / "north", str(kits / "rows.csv"), None):
        pass
    first, second = (str(one.message) for one in caught if one.category is DataWarning)
    assert "'patient' has another whole number in each row" in first
    assert "'same' has one value only here" in second
    assert read(kits / "north" / RECORD) == []
    rows = str(kits / "rows.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        with opened(kits / "north", rows, None, drop=("patient", "same")):
            pass


def test_the_operator_sees_in_the_terminal_how_the_partys_own_rows_differ(kits, monkeypatch):
    """What concerns nobody else is shown where the party was started, unless that is quiet."""
    north = open_kit(kits / "north", "site")
    frame = iris()
    frame.query("target == 0").to_csv(kits / "rows.csv", index=False)
    problem = problem_of(frame)
    anna = Signer(kits / "anna", open_kit(kits / "anna", "lead"))

    def asked(site: Site, _say: object) -> None:
        monkeypatch.setenv(DOOR, site.door)
        message = encode(Request("run", 3, "sum", Differ(), problem.digest, problem))
        ask = Ask("call", north.name, anna.certificate, message, 20.0, anna.sign(message))
        assert not isinstance(decode_reply(knock(ask).reply), Refusal)

    monkeypatch.setattr(Site, "run", asked)
    arguments = ["party", "start", str(kits / "north"), "--data", str(kits / "rows.csv")]
    found = CliRunner().invoke(cli, [*arguments, "--target", "target"])
    assert found.exit_code == 0, found.output
    assert "cotune: north: your rows lack the classes '1', '2'; your class shares" in found.output
