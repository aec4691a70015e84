"""Guides are followed word for word, block by block: files are saved, Python runs, and commands print what the page shows.

A block with a title, such as ``python title="job.py"``, is a file. In what a command prints, ``…`` stands for anything. ``sbatch`` is a
stand-in, and so is ``torch`` where it is not installed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.apps.cli.gate.test_page import Reader, commands_of
from tests.project.test_docs import GUIDES, bucket

__all__ = ["bucket"]

STAND_INS = Path(__file__).parents[1] / "stand_ins"
BLOCK = re.compile(
    r'^```(?P<kind>python|console|sh title|python title)(?:="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Step:
    line: int  # of the page, where the block's text starts
    kind: str
    title: str | None
    text: str


def steps_of(text: str) -> list[Step]:
    return [
        Step(text.count("\n", 0, match.start("text")) + 1, match["kind"], match["title"], match["text"]) for match in BLOCK.finditer(text)
    ]


def printed_as_said(printed: str, said: str) -> bool:
    return fnmatchcase(printed, said.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]").replace("…", "*"))


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_guide_is_followed_word_for_word(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    text = page.read_text()
    if "s3://" in text:
        request.getfixturevalue("bucket")
    if "h5netcdf" in text:
        pytest.importorskip("h5netcdf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # in the processes of commands: pages say which of them to expect
    if find_spec("torch") is None:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_INS), os.environ.get("PYTHONPATH", "")]))
    reader = Reader("", tmp_path)
    (tmp_path / "bin/python").symlink_to("python3")
    (tmp_path / "bin/sbatch").symlink_to(STAND_INS / "sbatch")
    names: dict[str, object] = {"__name__": "__main__"}
    steps = steps_of(text)
    assert len(steps) >= 5
    for step in steps:
        if step.title:
            Path(step.title).write_text(step.text)
        elif step.kind == "python":
            exec(compile("\n" * (step.line - 1) + step.text, str(page), "exec"), names)
        else:
            for command, said in commands_of(f"```console\n{step.text}```"):
                printed, code = reader.run(command)
                assert code == 0, (command, printed)
                if not printed_as_said(printed, said):
                    assert printed == said, f"line {step.line}: {command}"


def test_three_dots_stand_for_anything() -> None:
    assert printed_as_said("job 12\n[1. 2.] *\n", "job …\n[1. 2.] *\n")
    assert not printed_as_said("1. *\n", "[1. 2.] *\n")
    assert not printed_as_said("job 12\n", "job …3\n")


def test_blocks_are_found_with_their_titles() -> None:
    text = '# A\n\n```sh title="a.sh"\nexit\n```\n\n```sh\nsbatch a.sh\n```\n\n```python\nx = 1\n```\n\n```console\n$ ls\n```\n'
    assert [(step.line, step.kind, step.title, step.text) for step in steps_of(text)] == [
        (4, "sh title", "a.sh", "exit\n"),
        (12, "python", None, "x = 1\n"),
        (16, "console", None, "$ ls\n"),
    ]
