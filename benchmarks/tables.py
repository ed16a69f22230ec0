"""Tables of measurements for the site, and the machine that they were taken on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Sequence
from typing import Any

Rows = Sequence[tuple[str, ...]]


def list_table(title: str, head: Sequence[str], rows: Rows) -> str:
    """A table in reStructuredText."""
    lines = [f".. list-table:: {title}", "   :header-rows: 1", "   :class: measured", ""]
    for row in (head, *rows):
        lines += [f"   {'*' if at == 0 else ' '} - {cell}" for at, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as stream:
        names = [line.partition(":")[2].strip() for line in stream if line.startswith("model name")]
    return names[0] if names else platform.machine()


def circumstances(packages: Sequence[str]) -> dict[str, Any]:
    """The machine, the day and the versions of packages, ready for JSON."""
    return {
        "machine": {"cores": os.cpu_count(), "processor": _processor()},
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def measured_on(results: dict[str, Any]) -> str:
    """The circumstances of results, in one sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    machine = results["machine"]
    return (
        f"Measured on {results['date']}: {machine['cores']} cores of {machine['processor']}, "
        f"Python {results['python']}, {versions}."
    )
