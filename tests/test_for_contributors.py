"""What helps contributors is well-formed: commit hooks, the dev container, the workflows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import ROOT

BIN = Path(sys.executable).parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def targets(text: str) -> set[str]:
    """The targets of the Makefile that a command line names."""
    return {
        word
        for command in re.findall(r"\bmake ([^&|;\n]+)", text)
        for word in command.split()
        if "=" not in word
    }


def rules() -> set[str]:
    """The targets that there are."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with the commit hooks and the tools that they use."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in (".pre-commit-config.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(BIN)
    return tmp_path


def pre_commit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pre-commit there, on its own."""
    return subprocess.run(
        [BIN / "pre-commit", *arguments],
        cwd=folder,
        env=os.environ | {"PRE_COMMIT_HOME": str(folder / ".git" / "pre-commit")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_hooks_are_valid(clone: Path) -> None:
    done = pre_commit(clone, "validate-config")
    assert done.returncode == 0, done.stdout


def test_the_hooks_find_what_is_wrong_and_nothing_else(clone: Path) -> None:
    files = {"page.rst": "Page\n====\n\nText.\n", "module.py": 'print("x")\n'}
    for name, text in files.items():
        (clone / name).write_text(text)
    subprocess.run(["git", "add", "page.rst", "module.py"], cwd=clone, check=True)
    done = pre_commit(clone, "run", "--all-files")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Passed") == 4

    (clone / "page.rst").write_text("Page\n====\n\nI recieve. \n")  # codespell:ignore
    (clone / "module.py").write_text("import os\nprint( 'x')\n")
    done = pre_commit(clone, "run", "--all-files")
    assert done.returncode != 0
    for hook in ("ruff", "ruff-format", "codespell", "sphinx-lint"):
        assert re.search(rf"^- hook id: {hook}$", done.stdout, re.MULTILINE), done.stdout


def test_the_dev_container_does_what_make_can() -> None:
    container: dict[str, Any] = json.loads(
        (ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8")
    )
    assert container["image"].endswith("python:3.11")
    named = targets(container["postCreateCommand"])
    assert "setup" in named
    assert named <= rules()


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_may_no_more_than_it_must(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert "concurrency" in workflow
    writing = {
        (name, scope)
        for name, job in workflow["jobs"].items()
        for scope, access in job.get("permissions", {}).items()
        if access == "write"
    }
    publishing = {("publish", "pages"), ("publish", "id-token")}
    assert writing == (publishing if file.stem == "site" else set())
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/none@v1"))
            assert targets(step.get("run", "")) <= rules()


def test_the_workflows_are_as_github_reads_them() -> None:
    done = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_when_the_workflows_run() -> None:
    # YAML 1.1 reads the key "on" as true.
    when = {file.stem: set(yaml.safe_load(file.read_text("utf-8"))[True]) for file in WORKFLOWS}
    assert when["site"] >= {"pull_request", "push"}
    for name in ("links", "audit"):
        assert when[name] >= {"pull_request", "schedule"}
