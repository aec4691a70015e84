"""The progress bar on screens of any width: the bar and the time left stay, bytes a second go first."""

from __future__ import annotations

import re
import sys

import pytest
from rich.console import Console

from shardstore.progress import bar as progress_module
from shardstore.progress.shown import step_bar
from shardstore.progress.steps import Step
from tests.apps.cli.running import Terminal


def shown(step: Step, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The last line of the bar after some time of ``step``."""
    screen = Terminal()
    console = Console(file=screen, width=width, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress_module, "stderr_console", lambda: console)
    now = 0.0
    with step_bar(lambda: now) as report:
        report(Step(step.action, 0, step.total_objects, 0, step.total_nbytes))
        now = 7.0
        report(step)
        (progress,) = [cell.cell_contents for cell in report.__closure__ or () if hasattr(cell.cell_contents, "refresh")]
        progress.refresh()
        lines = [line for line in screen.getvalue().replace("\r", "\n").split("\n") if step.action in line]
    return lines[-1].replace("\x1b[2K", "").rstrip()


WORK = Step("copying chunks", 123_456, 1_000_000, 12_345 << 20, 98_765 << 20, failed=3)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_the_bar_and_the_time_left_stay(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    line = shown(WORK, width, monkeypatch)
    assert len(line) <= width
    bar = re.search("copying chunks (.*) 12% ", line)  # without colours the part that is not done is blank
    assert bar is not None
    assert bar[1].startswith("━")
    assert 10 <= len(bar[1]) <= 41
    assert line.endswith("-:--:--")
    assert "3 failed" in line
    assert "…" not in line


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (160, "123,456 of 1,000,000 objects, 12.1 GiB of 96.5 GiB, 1.7 GiB/s, 3 failed"),
        (104, "123,456 of 1,000,000 objects, 12.1 GiB of 96.5 GiB, 3 failed"),
        (80, "123,456 of 1,000,000 objects, 3 failed"),
        (60, "3 failed"),
    ],
)
def test_what_goes_first(width: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"12% {said} " in shown(WORK, width, monkeypatch)
