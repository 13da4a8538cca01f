"""Start-up kits: what a server, a site or a lead needs to take part, made and read.

A kit is a folder with `cotune.json`, the certificate and its key in `startup/`, and in `local/`
what its owner allows. NVFlare makes the certificates; the rules in `local/` are ours, and narrower
than its own: no code is accepted, no log leaves a site, and a job may only name our two classes.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import stat
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec

from cotune import __version__
from cotune.errors import Malformed, UsageError
from cotune.files import sealed, unsealed, write

Kind = Literal["server", "site", "lead"]

#: The file that makes a folder a kit.
KIT = "cotune.json"
#: NVFlare's name for the organisation: all kits of a federation have the same.
ORGANISATION = "cotune"
#: Every server's name in its certificate. The host that sites connect to is there as well.
SERVER = "server"
#: The first version whose kits can be used.
OLDEST = (0, 2)
#: The only classes that a job may name.
CLASSES = ["cotune.engines.nvflare.relay.Relay", "cotune.engines.nvflare.relay.Site"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_EMAIL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*@([A-Za-z0-9-]+\.)+[A-Za-z]{2,}")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
#: NVFlare's name of a job, and of the job's folder in a kit.
_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEPT_JOBS = 5
#: X.509 allows a common name of 64 characters.
_LONGEST = 64
_MOST_SITES = 100
_MOST_DAYS = 3650

#: What NVFlare's server and sites let the lead do. Whatever is not named is refused.
_AUTHORIZATION = {
    "format_version": "1.0",
    "permissions": {
        "lead": {
            "submit_job": "any",
            "manage_job": "n:submitter",
            "app_command": "n:submitter",
            "view": "any",
            "clone_job": "none",
            "download_job": "none",
            "operate": "none",
            "shell_commands": "none",
            "byoc": "none",
        }
    },
}

#: A message waits for a second delivery in a thread of its own, by default for a minute: a
#: thousand rounds would hold thousands of threads. Nobody connects to anybody but the server.
_COMMUNICATION = {
    "allow_adhoc_conns": False,
    "streaming_retry_timeout": 5.0,
    "streaming_retry_wait": 1.0,
}

_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
            "fmt": "%(asctime)s %(levelname)s %(name)s %(fl_ctx)s %(message)s",
        }
    },
    "handlers": {
        "file": {
            "class": "logging.handlers.RotatingFileHandler",
            "formatter": "line",
            "filename": "log.txt",
            "maxBytes": 5_000_000,
            "backupCount": 3,
        }
    },
    "root": {"level": "WARNING", "handlers": ["file"]},
}


class Kit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose kit it is. The files beside it say the same in NVFlare's words."""

    kind: Kind
    #: The server's host, the site's name, or the lead's name as it was given.
    name: str
    #: NVFlare's name of the project; kits of another `create` have another.
    federation: str
    host: str
    port: int
    #: All sites of the federation, sorted.
    sites: tuple[str, ...]
    #: The lead, by the e-mail address in its certificate.
    user: str
    version: str = __version__


def require_nvflare() -> None:
    """Say what to install; nothing is imported, which would take a second."""
    if find_spec("nvflare") is None:
        raise UsageError("a federation of real sites needs NVIDIA FLARE: install cotune[nvflare]")


def create(
    folder: Path, server: str, sites: Sequence[str], lead: str, days: int = 360
) -> list[Path]:
    """Make a federation: one zip for the server, one for each site, one for the lead.

    Each zip unpacks into one folder and is a secret between you and its recipient. `server` is
    HOST:PORT as the sites reach it. All certificates last `days`.

    The key that signed them is never written anywhere and is gone when this returns: nobody can
    make another certificate for this federation. For another site make new kits for all.
    """
    host, port = _address(server)
    names = _site_names(sites)
    user = _user(lead)
    short = lead.partition("@")[0]
    for name in names:
        if name.casefold() in (SERVER, short.casefold()):
            raise UsageError(
                f"a site may not be called {name!r}: the server or the lead is. Rename it"
            )
    if short.casefold() == SERVER:
        raise UsageError(f"the lead may not be called {lead!r}: the server is")
    if not 1 <= days <= _MOST_DAYS:
        raise UsageError(f"certificates cannot last {days} days: give 1 to {_MOST_DAYS}")
    _empty(folder)
    require_nvflare()

    federation = f"cotune_{secrets.token_hex(4)}"
    everyone = Kit("server", host, federation, host, port, names, user)
    kits = {SERVER: everyone}
    for name in names:
        kits[name] = msgspec.structs.replace(everyone, kind="site", name=name)
    kits[short] = msgspec.structs.replace(everyone, kind="lead", name=lead)

    with TemporaryDirectory(prefix="cotune-") as scratch:
        made = _provision(Path(scratch), everyone, days)
        contents = {
            recipient: _contents(made / (user if kit.kind == "lead" else recipient), kit)
            for recipient, kit in kits.items()
        }
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [_pack(folder, recipient, files) for recipient, files in contents.items()]
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None


def open_kit(folder: Path, kind: Kind) -> Kit:
    """Read the kit in `folder`, and see that it can be used: for `kind`, now, and by its owner."""
    require_nvflare()
    if folder.is_file():
        if zipfile.is_zipfile(folder):
            raise UsageError(
                f"{folder} is still packed: unpack it (unzip {folder}) and give the folder"
            )
        raise UsageError(f"{folder} is a file: give the folder of a kit")
    try:
        kit = _read(folder)
    except FileNotFoundError:
        raise UsageError(
            f"there is no kit in {folder}: give the folder that a zip of "
            "`cotune federation create` unpacks into"
        ) from None
    except OSError as error:
        raise UsageError(f"{folder / KIT} cannot be read: {error.strerror}") from None
    except Malformed:
        raise _damaged(folder / KIT) from None
    if kit.kind != kind:
        raise UsageError(f"{folder} is {_whose(kit)}: here it must be {_ANY[kind]}")
    _check_version(kit)
    _check_keys(folder, kit)
    now = datetime.now(UTC)
    begin, end = _validity(folder, kit)
    if now < begin:
        raise UsageError(
            f"{_whose(kit)} is not valid before {begin:%Y-%m-%d %H:%M} UTC: "
            "is this machine's clock right?"
        )
    if now >= end:
        raise UsageError(
            f"{_whose(kit)} expired on {end:%Y-%m-%d}: "
            "make new kits for everybody with `cotune federation create`"
        )
    return kit


def _check_version(kit: Kit) -> None:
    """Kits of older versions name classes of cotune by paths where they are no more."""
    numbers = re.findall(r"\d+", kit.version)[:2]
    if tuple(map(int, numbers)) < OLDEST:
        raise UsageError(
            f"{_whose(kit)} was made by cotune {kit.version}, whose kits this version cannot use: "
            "make new kits for everybody with `cotune federation create`"
        )


def expires(folder: Path) -> datetime:
    """When the kit in `folder` ends to be valid, in UTC: its own certificate or the root's."""
    return _validity(folder, _read(folder))[1]


def _read(folder: Path) -> Kit:
    """`cotune.json`. Kits of older versions have no digest, and are read all the same."""
    return unsealed((folder / KIT).read_bytes(), Kit, must=False)


def _damaged(path: Path) -> UsageError:
    return UsageError(f"{path} is damaged: unpack the kit's zip again")


def prepare(folder: Path, kit: Kit) -> None:
    """Make a kit ready to start: no job of an earlier start runs again, the last few logs are kept.

    NVFlare keeps its jobs at absolute places only, by default where everybody can read them.
    """
    jobs = [path for path in folder.iterdir() if _JOB.fullmatch(path.name)]
    for job in sorted(jobs, key=lambda path: path.stat().st_mtime)[:-_KEPT_JOBS]:
        shutil.rmtree(job, ignore_errors=True)
    if kit.kind != "server":
        return
    store = folder.resolve() / "store"
    shutil.rmtree(store, ignore_errors=True)
    for part in (store, store / "snapshots", store / "jobs"):
        part.mkdir(mode=0o700)
    path = folder / "local" / "resources.json"
    try:
        resources = json.loads(path.read_bytes())
        snapshots = resources["snapshot_persistor"]["args"]["storage"]["args"]
        snapshots["root_dir"] = str(store / "snapshots")
        _component(resources, "job_manager")["args"]["uri_root"] = str(store / "jobs")
    except (OSError, ValueError, LookupError, TypeError, StopIteration, RecursionError):
        raise _damaged(path) from None
    write(path, json.dumps(resources, indent=1).encode())


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold the kit in `folder`: two processes with one kit break each other's jobs."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UsageError(f"{folder} must be writable: {error.strerror}") from None
    with os.fdopen(descriptor, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock.read(20).strip()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise UsageError(f"{who} uses the kit in {folder} already: stop it first") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


_ANY = {"server": "the server's kit", "site": "the kit of a site", "lead": "the lead's kit"}


def _whose(kit: Kit) -> str:
    return f"the kit of the {kit.kind} {kit.name}"


def _address(server: str) -> tuple[str, int]:
    """Host and port of HOST:PORT."""
    host, colon, number = server.rpartition(":")
    if not colon or not number.isascii() or not number.isdigit() or not 1 <= int(number) <= 65535:
        raise UsageError(
            f"the server {server!r} is not HOST:PORT with a port of 1 to 65535: "
            "write for example tuning.example.org:8002"
        )
    labels = host.split(".")
    named = len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels)
    if named and labels[-1].isdigit():
        try:
            named = IPv4Address(host) != IPv4Address("0.0.0.0")
        except ValueError:
            named = False
    if not named:
        raise UsageError(
            f"{host!r} is no host that sites could reach: give a host's name or an IPv4 address"
        )
    return host, int(number)


def _site_names(sites: Sequence[str]) -> tuple[str, ...]:
    if not 1 <= len(sites) <= _MOST_SITES:
        raise UsageError(f"a federation has 1 to {_MOST_SITES} sites: {len(sites)} were given")
    seen: dict[str, str] = {}
    for site in sites:
        if not _NAME.fullmatch(site):
            raise UsageError(
                f"{site!r} cannot be a site's name: it has up to 64 letters, digits, _ and -, "
                "and does not begin with -"
            )
        other = seen.get(site.casefold())
        if other is not None:
            raise UsageError(f"two sites are called {other!r} and {site!r}: give each its own name")
        seen[site.casefold()] = site
    return tuple(sorted(sites))


def _user(lead: str) -> str:
    user = lead if "@" in lead else f"{lead}@cotune.local"
    good = _EMAIL.fullmatch(user) if "@" in lead else _NAME.fullmatch(lead)
    if not good or len(user) > _LONGEST:
        raise UsageError(
            f"{lead!r} cannot be the lead's name: give a word of letters, digits, _ and -, "
            f"or an e-mail address of up to {_LONGEST} characters"
        )
    return user


def _empty(folder: Path) -> None:
    if folder.is_dir():
        if any(folder.iterdir()):
            raise UsageError(f"{folder} holds something already: give a new folder")
    elif folder.exists():
        raise UsageError(f"{folder} is no folder: give a new one")


def _provision(scratch: Path, server: Kit, days: int) -> Path:
    """Let NVFlare make keys, certificates and its settings; a folder for each participant."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Participant, Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    class Certificates(CertBuilder):  # type: ignore[misc]
        """All certificates last as long as the root's, which keeps its key in memory."""

        def _generate_cert(self, *args: Any, **options: Any) -> Any:
            return CertBuilder._generate_cert(*args, **{"valid_days": days} | options)

        def finalize(self, project: Any, ctx: Any) -> None:
            """NVFlare would write the root's key here."""

    ports = {"fed_learn_port": server.port, "admin_port": server.port}
    people = [Participant("server", SERVER, ORGANISATION, {"default_host": server.host} | ports)]
    people += [Participant("client", site, ORGANISATION) for site in server.sites]
    people += [Participant("admin", server.user, ORGANISATION, {"role": "lead"})]
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        Certificates(root_valid_days=days),
    ]
    project = Project(server.federation, "", people)
    done = Provisioner(str(scratch), builders).provision(
        project, logger=logging.getLogger(__name__)
    )
    if done.get(CtxKey.BUILD_ERROR):
        raise UsageError("NVIDIA FLARE could not make the kits: what it said is above")
    return Path(done[CtxKey.CURRENT_PROD_DIR])


def _contents(made: Path, kit: Kit) -> dict[str, bytes]:
    """The files of a kit: NVFlare's certificates and settings, our rules, none of its scripts."""
    files = {KIT: sealed(kit)}
    for path in (made / "startup").iterdir():
        if path.suffix in (".crt", ".key", ".pem", ".json"):
            files[f"startup/{path.name}"] = path.read_bytes()
    resources = json.loads((made / "local" / "resources.json.default").read_bytes())
    rules: dict[str, Mapping[str, Any]] = {"comm_config": _COMMUNICATION}
    if kit.kind == "lead":
        rules["resources"] = resources
    else:
        rules["resources"] = _resources(resources, kit)
        rules["authorization"] = _AUTHORIZATION
        rules["log_config"] = _LOGGING
    if kit.kind == "server":
        settings = json.loads(files["startup/fed_server.json"])
        # NVFlare listens on this machine only, if the target says so; else on all addresses.
        settings["servers"][0]["service"]["target"] = f"{kit.host}:{kit.port}"
        files["startup/fed_server.json"] = json.dumps(settings, indent=1).encode()
    for name, rule in rules.items():
        files[f"local/{name}.json"] = json.dumps(rule, indent=1).encode()
    return files


def _resources(resources: dict[str, Any], kit: Kit) -> dict[str, Any]:
    """NVFlare's own components, without those that carry logs away from the sites."""
    logs = {"site_log_streamer", "log_receiver"}
    parts = [part for part in resources["components"] if part["id"] not in logs]
    changed = resources | {
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": CLASSES,
        "allow_log_streaming": False,
        "components": parts,
    }
    if kit.kind == "server":
        # A site beats every 10 s. NVFlare looks for jobs once a second; these let it try each time.
        changed["servers"][0] |= {"max_num_clients": len(kit.sites), "heart_beat_timeout": 60}
        _component(changed, "job_scheduler")["args"] = {
            "max_jobs": 1,
            "min_schedule_interval": 0.5,
            "max_schedule_interval": 2.0,
        }
    return changed


def _component(resources: Mapping[str, Any], name: str) -> dict[str, Any]:
    component: dict[str, Any] = next(p for p in resources["components"] if p["id"] == name)
    return component


def _pack(folder: Path, recipient: str, files: Mapping[str, bytes]) -> Path:
    """Write the zip that unpacks into `recipient`/, all readable by the owner only."""
    path = folder / f"{recipient}.zip"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    now = time.localtime()[:6]
    with os.fdopen(descriptor, "wb") as raw, zipfile.ZipFile(raw, "w") as packed:
        for inner in ("", "startup/", "local/", "transfer/"):
            entry = zipfile.ZipInfo(f"{recipient}/{inner}", now)
            entry.external_attr = (stat.S_IFDIR | 0o700) << 16 | 0x10
            packed.writestr(entry, b"")
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{recipient}/{name}", now)
            entry.external_attr = (stat.S_IFREG | 0o600) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, content)
    return path


def _certificate(folder: Path, kit: Kit) -> Path:
    return folder / "startup" / ("server.crt" if kit.kind == "server" else "client.crt")


def _check_keys(folder: Path, kit: Kit) -> None:
    certificate = _certificate(folder, kit)
    for path in (certificate, certificate.with_suffix(".key"), folder / "startup" / "rootCA.pem"):
        if not path.is_file():
            raise UsageError(f"{path} is missing: unpack the kit's zip again")
    for key in (folder / "startup").glob("*.key"):
        if key.stat().st_mode & 0o077:
            raise UsageError(f"others can read {key}: chmod -R go-rwx {folder}")


def _validity(folder: Path, kit: Kit) -> tuple[datetime, datetime]:
    """From when until when both the kit's certificate and the root's are valid."""
    from cryptography.x509 import load_pem_x509_certificate

    certificates = []
    for path in (_certificate(folder, kit), folder / "startup" / "rootCA.pem"):
        try:
            certificates.append(load_pem_x509_certificate(path.read_bytes()))
        except (OSError, ValueError):
            raise _damaged(path) from None
    return (
        max(each.not_valid_before_utc for each in certificates),
        min(each.not_valid_after_utc for each in certificates),
    )
