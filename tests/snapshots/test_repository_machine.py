"""Repositories do what a model of dictionaries says, whatever several sessions do."""

from __future__ import annotations

import uuid

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from shardstore.snapshots import Repository
from tests.harness.scale import EXAMPLES
from tests.snapshots.repository_machine import Meeting, RepositoryMachine, meetings, meetings_of_appends

pytestmark = [pytest.mark.timeout(300 + 5 * EXAMPLES)]


class Machine(RepositoryMachine):
    def create(self) -> Repository:
        return Repository.create(f"memory://{uuid.uuid4()}", pack=(2, 2), max_memory=4000)


def test_sessions_do_what_the_model_says() -> None:
    run_state_machine_as_test(
        Machine,
        settings=hypothesis.settings(
            max_examples=EXAMPLES // 5, stateful_step_count=20, suppress_health_check=list(hypothesis.HealthCheck)
        ),
    )


@hypothesis.settings(max_examples=EXAMPLES // 5, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(meeting=st.lists(meetings(), min_size=3, max_size=6))
def test_sessions_that_meet_do_what_the_model_says(meeting: list[Meeting]) -> None:
    machine = Machine()
    machine.begin_with_something([])
    for one in meeting:
        machine.meet(one)
    machine.teardown()


@hypothesis.settings(max_examples=EXAMPLES // 5, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(meeting=st.lists(meetings_of_appends(), min_size=3, max_size=6))
def test_sessions_that_append_do_what_the_model_says(meeting: list[Meeting]) -> None:
    machine = Machine()
    machine.begin_with_something([])
    for one in meeting:
        machine.meet(one)
    machine.teardown()
