"""The commands of real federations: `cotune federation ...` and `cotune party ...`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotune.cli.options import (
    PRIVACY,
    completes,
    json_option,
    known_learners,
    quiet_option,
    target_option,
)

if TYPE_CHECKING:
    from cotune.site.audit import Entry

_KIT = click.argument("kit", metavar="KIT", type=click.Path(path_type=Path))


@click.group()
def federation() -> None:
    """Set a federation of real parties up, serve it, and see who is there.

    \b
    Example:
      cotune federation create kits --server tuning.example.org:8002 \\
          --site north --site south --site west --lead anna
    """


@federation.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--server",
    required=True,
    metavar="HOST:PORT",
    help="Where the sites and the lead reach the server.",
)
@click.option("--site", "sites", multiple=True, required=True, metavar="NAME", help="Repeatable.")
@click.option("--lead", required=True, metavar="NAME", help="Who starts runs: a name or e-mail.")
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=360,
    metavar="N",
    help="How long the certificates last.",
)
@json_option
def create(
    folder: Path, server: str, sites: tuple[str, ...], lead: str, days: int, as_json: bool
) -> None:
    """Make a start-up kit for the server, for each site and for the lead, in the new folder DIR.

    Each is a zip with a secret key: hand it to its recipient on a safe way and delete it here. The
    key that signed the certificates is not kept, so a further site needs new kits for all.

    \b
    Examples:
      cotune federation create kits --server tuning.example.org:8002 \\
          --site north --site south --site west --lead anna
      cotune federation create trial --server localhost:8002 --site a --site b --lead me
    """
    from cotune.engines.nvflare.kits import create as make

    zips = make(folder, server, sites, lead, days)
    if as_json:
        click.echo(json.dumps({"kits": [str(path) for path in zips], "days": days}))
        return
    click.echo(f"{len(zips)} kits are in {folder}, valid for {days} days:")
    for path in zips:
        click.echo(f"  {path}")
    host = server.rpartition(":")[0]
    click.echo("hand each to its recipient on a safe way, and delete it here; then, unpacked:")
    click.echo(f"  on {host}:      cotune federation serve server")
    click.echo("  at each site:   cotune party check KIT --data FILE --target COLUMN")
    click.echo("                  cotune party start KIT --data FILE --target COLUMN")
    click.echo(f"  the lead:       cotune federation status {zips[-1].stem}")
    click.echo(f"                  cotune tune --federation {zips[-1].stem}")


@federation.command()
@_KIT
def serve(kit: Path) -> None:
    """Run the server of KIT until Ctrl-C (or SIGTERM). It passes messages on and holds no data.

    \b
    Example:
      cotune federation serve server
    """
    from cotune.site.process import serve as run

    os.umask(0o077)
    with _until_stopped():
        run(kit, _say)


@federation.command()
@_KIT
@json_option
def status(kit: Path, as_json: bool) -> None:
    """Say whether the server runs, which sites are connected, and how long the kits last.

    KIT is the lead's.

    \b
    Examples:
      cotune federation status anna
      cotune federation status anna --json
    """
    from cotune.engines.nvflare.session import status as find

    found = find(kit)
    if as_json:
        click.echo(json.dumps(found.summary()))
        return
    click.echo(f"server    {found.server}, up since {found.since}")
    for site, seen in found.sites.items():
        click.echo(f"site      {site}: {seen}")
    click.echo(f"run       {found.run}")
    click.echo(f"kits      valid until {found.until:%Y-%m-%d}, {found.days_left} more days")


@click.group()
def party() -> None:
    """Run a party at its own site: its data stay there, and it decides what it tells.

    \b
    Example:
      cotune party start north --data patients.csv --target outcome
    """


_DATA = (
    click.option(
        "--data",
        required=True,
        metavar="FILE",
        help="The party's rows: CSV, TSV, Parquet, ARFF, NPZ or text:FILE.",
    ),
    target_option,
    click.option(
        "--drop",
        multiple=True,
        metavar="COL",
        help="A column that never takes part, say an identifier; repeatable.",
    ),
)


def _data_options(command: Any) -> Any:
    for option in reversed(_DATA):
        command = option(command)
    return command


@party.command()
@_KIT
@_data_options
@click.option(
    "--learner",
    "learners",
    multiple=True,
    metavar="NAME",
    show_default="all that are installed",
    shell_complete=completes(known_learners),
    help="A learner that may be tuned and trained here, repeatable.",
)
@click.option(
    "--at-least",
    type=click.Choice(PRIVACY),
    default="plain",
    help="Refuse whatever tells this party's own figures in the clear (masked), or under less than "
    "encryption (encrypted).",
)
@click.option(
    "--refuse", "refused", multiple=True, metavar="TASK", help="A task not to perform, repeatable."
)
@click.option(
    "--fewest",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Refuse private sums of fewer parties.",
)
@click.option(
    "--least-noise",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SIGMA",
    help="Refuse totals with less noise (tune --noise), but for those that make the schema.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    show_default="one per core",
    help="Worker processes.",
)
@quiet_option
def start(
    kit: Path,
    data: str,
    target: str | None,
    drop: tuple[str, ...],
    processes: int | None,
    quiet: bool,
    **policy: Any,
) -> None:
    """Take part in the federation of KIT with the rows of FILE, until Ctrl-C (or SIGTERM).

    What is asked, by whom, and what is told is shown, and kept in KIT/audit.jsonl. The file, the
    target and these rules are this site's own: nobody else can change them.

    \b
    Examples:
      cotune party start north --data patients.csv --target outcome
      cotune party start north --data patients.csv --target outcome --at-least masked --fewest 3
      cotune party start north --data scans.npz --learner cnn --refuse marginals
    """
    from cotune.party.task import OPERATOR
    from cotune.site.policy import Policy
    from cotune.site.process import opened

    known = {""}

    def show(entry: Entry) -> None:
        """What a kind of reply tells is said with the first of its kind."""
        if not quiet:
            click.echo(entry.line + ("" if entry.discloses in known else f": {entry.discloses}"))
            known.add(entry.discloses)

    if not quiet:
        logging.getLogger(OPERATOR).setLevel(logging.INFO)
    os.umask(0o077)  # what the party remembers is for its owner alone
    rules = Policy(**policy)
    with (
        _until_stopped(),
        opened(kit, data, target, rules, drop=drop, processes=processes, show=show) as site,
    ):
        here = f"{site.kit.host}:{site.kit.port}"
        _say(f"the party {site.kit.name} is ready, and connects to {here}; Ctrl-C ends it")
        site.run(_say)


@party.command()
@_KIT
@_data_options
@json_option
def check(kit: Path, data: str, target: str | None, drop: tuple[str, ...], as_json: bool) -> None:
    """Say whether the party of KIT can take part with FILE; nothing leaves the site.

    Its rows, columns and classes are shown, what is wrong with them, and whether the server can be
    reached with this kit.

    \b
    Examples:
      cotune party check north --data patients.csv --target outcome
      cotune party check north --data patients.csv --target outcome --json
    """
    from msgspec import to_builtins

    from cotune.data.load import check_column, load, usual_target
    from cotune.engines.nvflare.kits import expires, open_kit
    from cotune.errors import DataError, FederationError
    from cotune.site.examine import as_text, examine
    from cotune.site.process import check_connection

    open_kit(kit, "site")
    frame = load(data)
    for column in drop:
        check_column(frame, column)
    found = examine(frame, target or usual_target(data), drop)
    try:
        check_connection(kit)
        unreachable = None
    except FederationError as error:
        unreachable = error
    connection = str(unreachable or "the server answers and accepts this kit")
    until = f"{expires(kit):%Y-%m-%d}"
    if as_json:
        told = {"data": to_builtins(found), "connection": connection, "valid_until": until}
        click.echo(json.dumps(told))
    else:
        click.echo(as_text(found))
        click.echo(f"\nconnection: {connection}; the kit is valid until {until}")
    if found.problems:
        raise DataError(f"{data} cannot take part: {found.problems[0]}")
    if unreachable is not None:
        raise unreachable


@party.command()
@_KIT
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last N messages.")
@json_option
def audit(kit: Path, last: int | None, as_json: bool) -> None:
    """Show the party's own record: what it was asked, by whom, and what it told.

    Every line of KIT/audit.jsonl is linked to the one before; a line that was changed or removed
    is an error here.

    \b
    Examples:
      cotune party audit north
      cotune party audit north --last 20
      cotune party audit north --json
    """
    from msgspec import to_builtins

    from cotune.errors import DataError, UsageError
    from cotune.site import audit as record
    from cotune.site.process import RECORD

    path = kit / RECORD
    if not path.exists():
        raise UsageError(f"there is no record in {kit}: has the party been started with this kit?")
    entries = record.read(path)
    shown = entries[-last:] if last else entries
    if as_json:
        click.echo(json.dumps(to_builtins(shown)))
    else:
        click.echo(record.as_text(shown))
    broken = record.check(path)
    if broken is not None:
        raise DataError(f"{path}: {broken}")


@contextmanager
def _until_stopped() -> Iterator[None]:
    """Ctrl-C and SIGTERM are how these commands end."""
    try:
        yield
    except KeyboardInterrupt:
        _say("stopped")


def _say(sentence: str) -> None:
    click.echo(f"cotune: {sentence}", err=True)
