"""The examples run as they are written, and the README's example too."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example):
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "best" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_five_lines_of_the_readme_run(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    quick = code.replace("sklearn:digits", "sklearn:iris").replace("trials=20", "trials=2")
    assert quick != code
    subprocess.run([sys.executable, "-c", quick], check=True, timeout=300)
