"""Kits are made once, hold only what their owner needs, and say what is wrong with them."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from cotune.engines.nvflare import kits
from cotune.errors import UsageError

SITES = ["south", "north"]


def unpack(packed: Path, folder: Path) -> Path:
    """As `unzip` does, with the modes that the zip has."""
    with zipfile.ZipFile(packed) as archive:
        for entry in archive.infolist():
            path = Path(archive.extract(entry, folder))
            path.chmod(entry.external_attr >> 16 & 0o777)
    return folder / packed.stem


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The zips of a federation, and beside them what they hold."""
    folder = tmp_path_factory.mktemp("made")
    zips = kits.create(folder / "kits", "127.0.0.1:8002", SITES, "anna@hospital.org", days=500)
    for packed in zips:
        unpack(packed, folder)
    return folder


@pytest.fixture
def north(made, tmp_path):
    """A copy of a site's kit that a test may spoil."""
    return Path(shutil.copytree(made / "north", tmp_path / "north"))


def test_everybody_gets_one_zip_that_unpacks_into_one_folder(made):
    names = {path.name for path in (made / "kits").iterdir()}
    assert names == {"server.zip", "north.zip", "south.zip", "anna.zip"}
    for path in (made / "kits").iterdir():
        with zipfile.ZipFile(path) as archive:
            assert all(name.startswith(f"{path.stem}/") for name in archive.namelist())


def test_kits_are_readable_by_their_owner_only(made):
    paths = [made / "kits", *(made / "kits").iterdir()]
    for kit in ("server", "north", "anna"):
        paths += [made / kit, *(made / kit).rglob("*")]
    assert len(paths) > 30
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_kit_says_whose_it_is(made):
    server = kits.open_kit(made / "server", "server")
    site = kits.open_kit(made / "north", "site")
    lead = kits.open_kit(made / "anna", "lead")
    assert (server.name, site.name, lead.name) == ("127.0.0.1", "north", "anna@hospital.org")
    assert server.user == site.user == lead.user == "anna@hospital.org"
    for kit in (server, site, lead):
        assert (kit.host, kit.port, kit.sites) == ("127.0.0.1", 8002, ("north", "south"))
        assert kit.federation == server.federation


def test_all_certificates_last_as_long_as_was_asked(made):
    asked = datetime.now(UTC) + timedelta(days=500)
    for kit in ("server", "north", "anna"):
        assert abs(kits.expires(made / kit) - asked) < timedelta(minutes=5)


def test_only_a_kits_own_key_is_in_it_and_nobody_has_the_roots(made):
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificate

    root = load_pem_x509_certificate((made / "north/startup/rootCA.pem").read_bytes()).public_key()
    keys = [path for path in made.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]
    assert sorted(str(path.relative_to(made)) for path in keys) == [
        "anna/startup/client.key",
        "north/startup/client.key",
        "server/startup/server.key",
        "south/startup/client.key",
    ]
    for path in keys:
        assert load_pem_private_key(path.read_bytes(), None).public_key() != root


def test_no_script_of_nvflare_is_in_a_kit(made):
    endings = {path.suffix for path in made.rglob("*") if path.is_file()}
    assert endings == {".zip", ".json", ".crt", ".key", ".pem"}


@pytest.mark.parametrize("kit", ["server", "north"])
def test_a_job_may_name_only_our_classes_and_no_log_leaves(made, kit):
    resources = json.loads((made / kit / "local/resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == kits.CLASSES
    assert resources["allow_log_streaming"] is False
    assert not [part for part in resources["components"] if "log" in part["id"]]


@pytest.mark.parametrize("kit", ["server", "north"])
def test_nvflare_refuses_the_lead_whatever_is_not_needed(made, kit):
    from nvflare.fuel.sec.authz import AuthzContext, Person
    from nvflare.security.security import FLAuthorizer

    rules = json.loads((made / kit / "local/authorization.json").read_text())
    authorizer = FLAuthorizer("cotune", rules)
    anna = Person("anna@hospital.org", "cotune", "lead")
    other = Person("otto@hospital.org", "cotune", "lead")

    def allowed(right: str, user: Person, submitter: Person = anna) -> bool:
        return authorizer.authorize(AuthzContext(right, user, submitter))[0]

    for right in ("submit_job", "abort_job", "list_jobs", "check_status", "app_command"):
        assert allowed(right, anna), right
    for right in ("byoc", "ls", "cat", "shutdown", "restart", "sys_info", "download_job"):
        assert not allowed(right, anna), right
    assert not allowed("abort_job", other)
    assert not allowed("app_command", other)
    for role in ("project_admin", "org_admin", "member"):
        assert not allowed("submit_job", Person("x@hospital.org", "cotune", role))


def test_a_server_keeps_its_jobs_in_its_kit_and_forgets_those_of_an_earlier_start(made, tmp_path):
    folder = Path(shutil.copytree(made / "server", tmp_path / "moved"))
    kit = kits.open_kit(folder, "server")
    for number in range(7):
        job = folder / f"0000000{number}-0000-0000-0000-000000000000"
        job.mkdir()
        os.utime(job, (number, number))
    kits.prepare(folder, kit)
    stale = folder / "store/jobs/stale"
    stale.touch()
    kits.prepare(folder, kit)
    assert not stale.exists()
    assert stat.S_IMODE((folder / "store").stat().st_mode) == 0o700
    text = (folder / "local/resources.json").read_text()
    assert str(folder / "store/jobs") in text
    assert str(folder / "store/snapshots") in text
    assert "/tmp/nvflare" not in text
    assert sorted(path.name[7] for path in folder.glob("0*")) == ["2", "3", "4", "5", "6"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"server": "hospital.org"}, "HOST:PORT"),
        ({"server": "hospital.org:0"}, "1 to 65535"),
        ({"server": "hospital.org:65536"}, "1 to 65535"),
        ({"server": "hospital.org:8002\n"}, "HOST:PORT"),
        ({"server": ":8002"}, "no host"),
        ({"server": "a b:8002"}, "no host"),
        ({"server": "256.0.0.1:8002"}, "IPv4"),
        ({"server": "0.0.0.0:8002"}, "no host"),
        ({"server": "::1:8002"}, "IPv4"),
        ({"server": "https://hospital.org:8002"}, "no host"),
        ({"sites": []}, "1 to 100 sites"),
        ({"sites": [f"s{number}" for number in range(101)]}, "101 were given"),
        ({"sites": ["north", "north"]}, "two sites"),
        ({"sites": ["north", "North"]}, "two sites"),
        ({"sites": ["../north"]}, "cannot be a site's name"),
        ({"sites": ["-north"]}, "cannot be a site's name"),
        ({"sites": ["n" * 65]}, "cannot be a site's name"),
        ({"sites": ["Server"]}, "may not be called"),
        ({"sites": ["anna"]}, "may not be called"),
        ({"lead": "server"}, "may not be called"),
        ({"lead": "anna b"}, "cannot be the lead's name"),
        ({"lead": "..@hospital.org"}, "cannot be the lead's name"),
        ({"lead": "anna@hospital"}, "cannot be the lead's name"),
        ({"lead": "a" * 60}, "cannot be the lead's name"),
        ({"days": 0}, "0 days"),
    ],
)
def test_what_cannot_be_a_federation_is_refused_before_anything_is_written(change, words, tmp_path):
    good = {"server": "hospital.org:8002", "sites": SITES, "lead": "anna", "days": 360}
    with pytest.raises(UsageError, match=words):
        kits.create(tmp_path / "new", **good | change)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="holds something"):
        kits.create(tmp_path, "localhost:8002", SITES, "anna")
    with pytest.raises(UsageError, match="no folder"):
        kits.create(Path("/dev/null"), "localhost:8002", SITES, "anna")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_zip_an_empty_folder_and_another_kind_are_named(made, tmp_path):
    with pytest.raises(UsageError, match=r"unzip .*north\.zip"):
        kits.open_kit(made / "kits/north.zip", "site")
    with pytest.raises(UsageError, match="there is no kit"):
        kits.open_kit(tmp_path, "site")
    with pytest.raises(UsageError, match="kit of the site north: here it must be the lead's kit"):
        kits.open_kit(made / "north", "lead")


@pytest.mark.parametrize("content", [b"{}", b"", b'{"kind": "\xff"}', b"[" * 10_000])
def test_a_damaged_kit_says_so(north, content):
    (north / "cotune.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"cotune\.json is damaged: unpack the kit's zip again"):
        kits.open_kit(north, "site")


def test_a_kit_in_which_one_letter_was_changed_says_so(north):
    path = north / "cotune.json"
    path.write_text(path.read_text().replace('"south"', '"souti"'))
    with pytest.raises(UsageError, match=r"cotune\.json is damaged"):
        kits.open_kit(north, "site")


def test_a_kit_of_an_older_version_is_refused_with_a_sentence(north):
    """It has no digest, and names classes where they are no more."""
    path = north / "cotune.json"
    kit = msgspec.structs.replace(kits.open_kit(north, "site"), version="0.1.0")
    path.write_bytes(msgspec.json.encode(kit))
    with pytest.raises(UsageError, match=r"made by cotune 0\.1\.0, .*federation create"):
        kits.open_kit(north, "site")


@pytest.mark.parametrize("content", [b"{}", b"[]", b"\xff", b'{"snapshot_persistor": 3}'])
def test_damaged_settings_of_the_server_are_named(made, tmp_path, content):
    server = Path(shutil.copytree(made / "server", tmp_path / "server"))
    (server / "local/resources.json").write_bytes(content)
    kit = kits.open_kit(server, "server")
    with pytest.raises(UsageError, match=r"resources\.json is damaged: unpack the kit's zip"):
        kits.prepare(server, kit)


def test_a_missing_key_is_named(north):
    (north / "startup/client.key").unlink()
    with pytest.raises(UsageError, match=r"client\.key is missing"):
        kits.open_kit(north, "site")


def test_a_key_that_others_can_read_is_refused_with_the_way_to_mend_it(north):
    (north / "startup/client.key").chmod(0o644)
    with pytest.raises(UsageError, match=rf"chmod -R go-rwx {north}"):
        kits.open_kit(north, "site")


@pytest.mark.parametrize(
    ("days", "words"), [(-1, "not valid before"), (501, "expired on .* federation create")]
)
def test_a_certificate_outside_its_time_is_refused(north, monkeypatch, days, words):
    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=days)

    monkeypatch.setattr(kits, "datetime", Clock)
    with pytest.raises(UsageError, match=words):
        kits.open_kit(north, "site")


def test_a_kit_is_used_by_one_process_at_a_time(north):
    hold = "import sys; from pathlib import Path; from cotune.engines.nvflare.kits import in_use\n"
    hold += "with in_use(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(north)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(UsageError, match=f"process {other.pid} uses the kit"),
            kits.in_use(north),
        ):
            pass
        other.kill()
    with kits.in_use(north):
        pass


def test_without_nvflare_it_says_what_to_install(north, monkeypatch, tmp_path):
    monkeypatch.setattr(kits, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"install cotune\[nvflare\]"):
        kits.open_kit(north, "site")
    with pytest.raises(UsageError, match=r"install cotune\[nvflare\]"):
        kits.create(tmp_path / "new", "localhost:8002", SITES, "anna")


def test_reading_a_kit_does_not_import_nvflare(made):
    code = (
        "import sys; from pathlib import Path; from cotune.engines.nvflare.kits import open_kit\n"
    )
    code += "open_kit(Path(sys.argv[1]), 'site'); sys.exit('nvflare' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code, str(made / "north")], check=False).returncode
        == 0
    )
