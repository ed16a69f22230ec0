"""The diagnosis as JSON, in the shape of the published schema ``diagnosis.schema.json``."""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import os
from typing import Any

from fr_analysis.diagnosis import Diagnosis
from fr_analysis.trace import Frame

SCHEMA_VERSION = "1.0"
"""Major: a field changed its meaning or went. Minor: a field came."""


def _plain(value: Any) -> Any:
    """Objects with names of fields to dictionaries, tuples to lists, paths and URLs to text."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Frame):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def diagnosis_as_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as plain data, as ``json`` writes it.

    Args:
        diagnosis: the answer.

    Returns:
        A dictionary that the schema describes, ``schema_version`` first.
    """
    table: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    table |= _plain(diagnosis)
    return table


def render_json(diagnosis: Diagnosis) -> str:
    """Render a diagnosis as JSON text, ending in a newline."""
    return json.dumps(diagnosis_as_dict(diagnosis), indent=2) + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what ``render_json`` writes."""
    text = importlib.resources.files("fr_analysis.report").joinpath("diagnosis.schema.json")
    loaded: dict[str, Any] = json.loads(text.read_text(encoding="utf-8"))
    return loaded


def within_html(text: str) -> str:
    """JSON that means the same, and in which nothing looks like a tag or an entity of HTML.

    Args:
        text: JSON.

    Returns:
        JSON that may stand within a page, whatever strings it holds.
    """
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
