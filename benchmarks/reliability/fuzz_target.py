"""One target in the fuzzer's own process, which ``fuzz`` starts.

Its arguments: the name of one of ``tests.hostile.properties``, and options of libFuzzer. Nothing
of the package is imported before it is instrumented.
"""

from __future__ import annotations

import sys

import atheris

if __name__ == "__main__":
    with atheris.instrument_imports(include=["fr_analysis", "json", "pickle"]):
        from tests.hostile import properties
    holds = getattr(properties, sys.argv[1])
    atheris.Setup([sys.argv[0], *sys.argv[2:]], holds)
    atheris.Fuzz()
