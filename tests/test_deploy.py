"""The deployment files parse, and every command that they and the documents show exists."""

import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cotune.cli.commands import cli

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "deployment.md", DEPLOY / "README.md"]

_COMMAND = re.compile(
    r"[$#] (?:\S+=\S+ |runuser -u \S+ -- |docker compose --file \S+ exec \S+ )*"
    r"(?:(?:/\S+/bin/)?cotune|docker compose --file \S+ run --rm \S+) (.*)"
)


def blocks(path: Path) -> Iterator[str]:
    """The console blocks of a document, with continued lines put together."""
    for block in re.findall(r"```console\n(.*?)```", path.read_text(), re.DOTALL):
        yield re.sub(r"\\\n\s*", "", block)


def shown(path: Path) -> list[list[str]]:
    """What follows `cotune` on each line with a prompt; the image's entry point is cotune, too."""
    return [
        shlex.split(found[1], comments=True)
        for block in blocks(path)
        for line in block.splitlines()
        if (found := _COMMAND.match(line))
    ]


def unit(path: Path) -> ConfigParser:
    """Of a key that is there more than once, the last."""
    parser = ConfigParser(allow_no_value=True, strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return parser


def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return read


def options_of_the_example() -> list[str]:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "party.env.example").read_text())
    (line,) = [line for line in text.splitlines() if line.startswith("COTUNE_OPTIONS=")]
    return shlex.split(line.partition("=")[2])


def commands() -> Iterator[tuple[str, list[str]]]:
    for path in DOCUMENTS:
        for words in shown(path):
            yield path.relative_to(ROOT).as_posix(), words
    for path in UNITS:
        words = shlex.split(unit(path)["Service"]["ExecStart"])[1:]
        if words[-1] == "$COTUNE_OPTIONS":
            words[-1:] = options_of_the_example()
        yield path.name, words
    for name, service in compose()["services"].items():
        yield f"compose.yaml, {name}", service["command"]


def check(words: list[str]) -> None:
    """Let click parse the words as it would, but run nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="cotune")
    while isinstance(command, click.Group):
        if words == ["--version"]:
            return
        assert words[0] in command.commands, f"there is no command {' '.join(words)!r}"
        command = command.commands[words[0]]
        context, words = click.Context(command, context, words[0]), words[1:]
    command.parse_args(context, words)


@pytest.mark.parametrize(("where", "words"), list(commands()), ids=str)
def test_a_command_that_is_shown_exists_with_its_options(where, words):
    check(words)


def test_the_check_finds_a_command_and_an_option_that_do_not_exist():
    with pytest.raises(AssertionError, match="no command"):
        check(["party", "begin", "north"])
    with pytest.raises(click.NoSuchOption):
        check(["party", "start", "north", "--data", "a.csv", "--at-most", "masked"])


def test_every_document_shows_the_commands_of_federations():
    for path in DOCUMENTS:
        first = {words[0] for words in shown(path)}
        assert "party" in first, path


def test_the_options_in_the_examples_comments_exist():
    start = cli.commands["party"].commands["start"]
    known = {name for option in start.params for name in option.opts}
    for comment in re.findall(r"^# (--\S+)", (DEPLOY / "party.env.example").read_text(), re.M):
        assert comment in known


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_confined_and_starts_again(path):
    service = unit(path)["Service"]
    assert service["User"] == "cotune"
    assert service["NoNewPrivileges"] == service["ProtectHome"] == service["PrivateTmp"] == "yes"
    assert service["ProtectSystem"] == "strict"
    kit = next(word for word in service["ExecStart"].split() if word.startswith("/var/lib/"))
    assert service["ReadWritePaths"] == kit
    assert service["Restart"] == "on-failure"
    assert service["KillMode"] == "mixed"
    assert unit(path)["Install"]["WantedBy"] == "multi-user.target"


def test_only_the_server_has_a_port_and_the_data_are_read_only():
    services = compose()["services"]
    assert len(services["server"]["ports"]) == 1
    assert "ports" not in services["party"]
    (data,) = [each for each in services["party"]["volumes"] if "/data" in each]
    assert data.endswith(":ro")
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def test_the_image_runs_as_a_user_without_rights_and_copies_what_exists():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert "USER cotune" in lines
    for line in lines:
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists()
