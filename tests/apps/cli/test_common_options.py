"""Options of every command: what is printed, and how much."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from shardstore.progress.shown import is_hidden, step_bar
from tests.apps.cli.running import Place, run, succeed


@pytest.mark.parametrize("command", [["info"], ["ls"], ["verify"], ["census"], ["rm", "--dry-run"], ["repair", "--dry-run"]])
def test_quiet_prints_no_results(command: list[str], local: Place) -> None:
    place = f"{local.url}/ct" if command[0] == "rm" else local.url
    outcome = succeed(*command, place, "-q")
    assert (outcome.out, outcome.err) == ("", "")
    assert succeed(*command, place).out != ""


def test_quiet_prints_errors_and_warnings(local: Place, tmp_path: Path) -> None:
    local.objects.put("ct/c/0/1", b"short")
    outcome = run("verify", local.url, "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (5, "", "error: 1 error was found\n")
    outcome = run("pack", local.url, str(tmp_path / "x.zarr"), "--part", "1/50", "--quiet")
    assert (outcome.out, outcome.err.startswith("warning: ")) == ("", True)


def test_results_are_not_wanted_and_wanted(local: Place) -> None:
    outcome = run("ls", local.url, "--quiet", "--json")
    assert (outcome.code, outcome.error) == (2, "--quiet prints no results, and --json prints them: give one of them")


@pytest.mark.parametrize(("flags", "is_shown"), [([], True), (["--no-progress"], False), (["--quiet"], False)])
def test_progress_is_shown_unless_it_is_not_wanted(
    flags: list[str], is_shown: bool, local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardstore.apps.cli.pack.step_bar", lambda: step_bar(Clock()))
    outcome = succeed("pack", local.url, str(tmp_path / "new.zarr"), *flags)
    assert ("copying chunks: " in outcome.err) is is_shown
    assert not is_hidden()


class Clock:
    """A clock by which a minute passes each time that it is looked at."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 60
        return self._now


def test_verbose_shows_what_is_logged(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def logs(*arguments: object) -> dict[str, str]:
        logging.getLogger("shardstore.some.module").info("a request is retried")
        return {}

    monkeypatch.setattr("shardstore.apps.cli.info.runtime_facts", logs)
    monkeypatch.setattr("shardstore.apps.cli.info.rows_of", lambda facts: [])
    assert "a request is retried" in succeed("info", "--runtime", "-v").err
    assert succeed("info", "--runtime").err == ""
    assert logging.getLogger("shardstore").handlers == []


def test_rm_can_only_look(local: Place) -> None:
    before = local.objects.keys()
    outcome = succeed("rm", f"{local.url}/ct", "--dry-run")
    assert outcome.lines[0].startswith(f"would remove array {local.url}/ct: 7 objects")
    assert local.objects.keys() == before
