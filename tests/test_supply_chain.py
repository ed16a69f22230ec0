"""What is installed is what the lock file says, checked; and what is asked about it answers."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import subprocess
import sys
import threading
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.test_makefile import checkout, complaint, lend_packages, make

from support import ROOT

__all__ = ["checkout"]

LOCK = (ROOT / "requirements.lock").read_text("utf-8")
UNLOCKED = {"torch"}
"""Its build differs from machine to machine."""


def locked() -> dict[str, list[tuple[Requirement, str]]]:
    """By name, each entry of the lock file and the text below it."""
    entries: dict[str, list[tuple[Requirement, str]]] = {}
    for entry in re.findall(r"^[a-z].*\n(?:[ ]+.*\n)+", LOCK, re.MULTILINE):
        first, rest = entry.split("\n", 1)
        requirement = Requirement(first.rstrip(" \\"))
        entries.setdefault(requirement.name, []).append((requirement, rest))
    return entries


def asked_for() -> list[Requirement]:
    """What requirements.txt and pyproject.toml name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    named = [line for line in lines if line and not line.startswith("#")]
    named += project["dependencies"] + project["optional-dependencies"]["dev"]
    return [Requirement(line) for line in named]


def test_the_lock_has_what_is_asked_for_and_nothing_else() -> None:
    directly = {
        name
        for name, entries in locked().items()
        for _, below in entries
        if re.search(r"-r requirements\.txt|\(pyproject\.toml\)", below)
    }
    wanted = {canonicalize_name(requirement.name) for requirement in asked_for()}
    assert directly == wanted - UNLOCKED, "`make lock` writes it anew"


def test_the_lock_has_versions_that_are_asked_for() -> None:
    for requirement in asked_for():
        for entry, _ in locked().get(canonicalize_name(requirement.name), []):
            (version,) = entry.specifier
            assert version.operator == "=="
            assert requirement.specifier.contains(version.version), "`make lock` writes it anew"


def test_every_package_of_the_lock_has_hashes_and_comes_from_no_other_place() -> None:
    assert len(locked()) > 100
    for entries in locked().values():
        for entry, below in entries:
            assert "--hash=sha256:" in below
            assert entry.url is None
    assert "://" not in LOCK
    assert not re.search(r"^-", LOCK, re.MULTILINE)


def test_only_torch_and_what_its_cuda_builds_need_are_left_out() -> None:
    left_out = LOCK.split("# The following packages were excluded from the output:\n")[1].split()
    assert set(left_out) - {"#"} == UNLOCKED
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["uv"]
    for name in tool["exclude-dependencies"]:
        assert re.match(r"nvidia-|cuda-|triton$", name)


def wheel(folder: Path) -> str:
    """Make a package there that has nothing in it.

    Returns:
        The hash of its wheel.
    """
    about = "empty_package-1.dist-info"
    path = folder / "empty_package-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: empty-package\nVersion: 1\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("hashes", "complaint_of_pip"),
    [
        (
            f" --hash=sha256:{hashlib.sha256(b'another file').hexdigest()}",
            "DO NOT MATCH THE HASHES",
        ),
        ("", "Hashes are required"),
    ],
    ids=["another hash", "no hash"],
)
def test_a_package_that_may_be_another_is_not_installed(
    checkout: Path, hashes: str, complaint_of_pip: str
) -> None:
    real = wheel(checkout)
    (checkout / "requirements.lock").write_text(f"empty-package==1{hashes}\n")
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(checkout)}
    done = make(checkout, "setup", f"PYTHON={sys.executable}", **environment)
    assert complaint_of_pip in done.stdout
    assert "could not be installed" in complaint(done)
    assert real in (checkout / ".venv" / "install.log").read_text("utf-8")
    assert not list((checkout / ".venv").glob("lib/python*/site-packages/empty_package*"))


class Vulnerabilities(http.server.BaseHTTPRequestHandler):
    """A service as OSV's, which knows of one vulnerability."""

    def do_POST(self) -> None:
        about = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]
        known = {"id": "TEST-1", "summary": "made up", "affected": [{"package": about}]}
        answer = {"vulns": [known]} if about["name"] == self.server.vulnerable else {}  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def installed(checkout: Path) -> Path:
    """A checkout in which everything is installed."""
    lend_packages(checkout)
    return checkout


def audit(checkout: Path, vulnerable: str) -> subprocess.CompletedProcess[str]:
    """Run `make audit` beside a service that knows of a vulnerability in one package."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Vulnerabilities) as server:
        server.vulnerable = vulnerable  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever).start()
        options = f"AUDIT=-s osv --osv-url http://127.0.0.1:{server.server_port}"
        done = make(checkout, "audit", options)
        server.shutdown()
    return done


@pytest.mark.parametrize("vulnerable", ["wasmtime", "torch"])
def test_an_audit_finds_what_is_vulnerable(installed: Path, vulnerable: str) -> None:
    done = audit(installed, vulnerable)
    assert done.returncode != 0
    assert "Found 1 known vulnerability in 1 package" in done.stdout
    assert re.search(rf"^{vulnerable} +\d\S+ +TEST-1$", done.stdout, re.MULTILINE)


def test_an_audit_passes_where_nothing_is_vulnerable(installed: Path) -> None:
    done = audit(installed, "a package that is not installed")
    assert done.returncode == 0, done.stdout
    assert "No known vulnerabilities found" in done.stdout


def test_an_audit_that_reaches_no_service_says_so(installed: Path) -> None:
    done = make(installed, "audit", https_proxy="http://127.0.0.1:9")
    assert "nothing was audited: the vulnerability service is not reachable" in complaint(done)


def test_the_bill_of_materials_has_what_is_installed(installed: Path) -> None:
    # Its tool takes long to validate it; `make sbom` does, where it is published.
    done = make(installed, "sbom", "SBOM=--no-validate")
    assert done.returncode == 0, done.stderr
    text = (installed / "_build" / "sbom.json").read_text("utf-8")
    bill = json.loads(text)
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "fr-analysis"
    has = {canonicalize_name(part["name"]): part["version"] for part in bill["components"]}
    assert "torch" in has
    assert "fr-analysis" not in has, "it is what the bill is of"
    assert "file:" not in text, "it would tell where it was made"
    for name, entries in locked().items():
        for entry, _ in entries:
            if entry.marker is None or entry.marker.evaluate():
                assert entry.specifier.contains(has[name]), f"`make setup` installs {entry}"
