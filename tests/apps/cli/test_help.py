"""The rules that the options and the helps of all commands follow."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, get_args

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from shardstore.apps.cli.app import COMMANDS, _loaded, app
from shardstore.model.options import Group
from tests.apps.cli.running import PLAIN

LINES, COLUMNS, WORDS = 60, 100, 25
OF_EVERY_COMMAND = {"--quiet", "--no-progress", "--verbose"}


def functions() -> Iterator[tuple[str, Callable[..., None]]]:
    """Each command by its name, such as ``refs write``, and its function."""
    for name, command in COMMANDS.items():
        if not command.is_group:
            yield name, command.load()
            continue
        for inner, function in import_module(command.module).COMMANDS.items():
            yield f"{name} {inner}", function


FUNCTIONS = dict(functions())


def options(name: str) -> list[Any]:
    command = _loaded(name.split()[-1], FUNCTIONS[name])
    return [param for param in command.params if param.param_type_name == "option"]


OPTIONS = {name: options(name) for name in FUNCTIONS}


def said(option: Any) -> str:
    """The help of an option without its default."""
    return str(option.help).partition(" [dim]")[0]


@cache
def printed(*arguments: str) -> list[str]:
    result = CliRunner(env={**PLAIN, "COLUMNS": str(COLUMNS)}).invoke(app, [*arguments, "--help"])
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("name", ["", "refs", "snapshots", *FUNCTIONS])
def test_no_help_is_longer_than_a_screen(name: str) -> None:
    assert len(printed(*name.split())) <= LINES


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_command_has_the_common_options(name: str) -> None:
    assert {flag for option in OPTIONS[name] for flag in option.opts} >= OF_EVERY_COMMAND


def test_an_option_means_the_same_for_all_commands() -> None:
    meanings: dict[str, dict[tuple[str, str | None], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, found in OPTIONS.items():
        for option in found:
            for flag in option.opts:
                meanings[flag][said(option), option.metavar].append(name)
    assert {flag: dict(texts) for flag, texts in meanings.items() if len(texts) > 1} == {}


def test_an_option_is_in_one_group() -> None:
    groups: dict[str, set[Any]] = defaultdict(set)
    for found in OPTIONS.values():
        order = [option.rich_help_panel or get_args(Group)[0] for option in found]
        assert order == sorted(order, key=get_args(Group).index)
        for option, group in zip(found, order, strict=True):
            groups[option.opts[0]].add(group)
    assert {flag: names for flag, names in groups.items() if len(names) > 1} == {}


def test_defaults_are_shown_and_not_told() -> None:
    for name, found in OPTIONS.items():
        for option in found:
            assert "default" not in said(option), (name, option.opts)
            if option.default not in (None, False, ""):
                assert option.show_default, (name, option.opts)
    assert any("[default: 2]" in line for line in printed("pack"))
    assert any("[default: 2 per processor, 4 to 32]" in line for line in printed("pack"))


def test_a_command_that_asks_can_also_only_look() -> None:
    for name, found in OPTIONS.items():
        flags = {flag for option in found for flag in option.opts}
        assert "--yes" not in flags or "--dry-run" in flags, name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sentences_are_short(name: str) -> None:
    text = inspect.cleandoc(FUNCTIONS[name].__doc__ or "").partition("Examples:")[0]
    sentences = re.split(r"(?<=[.:;])\s+", " ".join(text.split()))
    assert [sentence for sentence in sentences if len(sentence.split()) > WORDS] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_command_shows_how_it_is_typed(name: str) -> None:
    assert any(line.strip().startswith(f"$ shardstore {name}") for line in printed(*name.split()))


def test_the_summary_of_each_command_is_the_first_sentence_of_its_help() -> None:
    for name, listed in COMMANDS.items():
        text = " ".join(inspect.cleandoc(listed.load().__doc__ or "").split())
        assert text.partition(". ")[0].rstrip(".") + "." == listed.summary, name


def test_the_list_of_commands_is_that_of_the_program() -> None:
    assert list(get_command(app).commands) == list(COMMANDS)  # type: ignore[attr-defined]  # a group's
