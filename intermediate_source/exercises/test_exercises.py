"""Fails for every exercise that still hangs: `pytest test_exercises.py`.

`EXERCISES=solutions pytest test_exercises.py` tries the solutions instead. It needs torch, pytest
and fr-analysis.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FOLDER = HERE / os.environ.get("EXERCISES", ".")


@pytest.mark.parametrize("name", ["exercise_1", "exercise_2", "exercise_3"])
def test_exercise_no_longer_hangs(name: str, tmp_path: Path) -> None:
    script = shutil.copy(FOLDER / f"{name}.py", tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    job = subprocess.run(
        [*torchrun, "--nproc_per_node=4", str(script)],
        cwd=tmp_path,
        env=os.environ | {"FR_DUMP_DIR": str(tmp_path / "fr_dumps"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    verdict = subprocess.run(
        [sys.executable, "-m", "fr_analysis", str(tmp_path / "fr_dumps")],
        capture_output=True,
        text=True,
        check=False,
    )
    print(job.stdout, verdict.stdout, sep="\n")
    assert verdict.returncode == 0, "the job still hangs: see the verdict above"
