"""Who has what say in what a check is kept within, and how the words of a wrapper are told from a command's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from statem_dist.checks.command import judge
from statem_dist.checks.confinement import BEGUN, Rules, Unconfinable, begun, rules_for
from statem_dist.checks.context import CheckContext
from statem_dist.checks.process import Captured, Finished
from statem_dist.executor import socket_of
from statem_dist.protocol.graph import UNCONFINED, Check, Command, Confinement, ResourceLimits, Sandbox
from statem_dist.protocol.model import Place
from statem_dist.settings import Settings

HERE = Settings(state_dir=Path("/state"))


def rules(policy: Sandbox | None, demand: Confinement, executor: str = "") -> Rules:
    """Return the rules of a policy and a demand."""
    settings = Settings(
        state_dir=Path("/state"), sandbox=policy, limits=ResourceLimits(cpu=9, files=5), workspace_roots=("/srv",)
    )
    place = Place(workspace="/srv/w", executor=executor)
    return rules_for(settings, demand, place, hidden=("/state", ""), passed=("WORD",))


def test_without_policy_and_demand_there_are_no_rules() -> None:
    """As it was before there were any."""
    assert rules_for(HERE, UNCONFINED, Place(workspace="/w"), hidden=(), passed=()) == Rules()


@pytest.mark.parametrize(
    ("policy", "demand", "sandbox"),
    [
        (None, None, None),
        (None, Sandbox(network=True), Sandbox(network=True)),
        (Sandbox(), None, Sandbox()),
        (Sandbox(), Sandbox(), Sandbox()),
        # That a runbook may ask for the network does not mean that it gets it unasked.
        (Sandbox(network=True), None, Sandbox()),
        (Sandbox(network=True), Sandbox(), Sandbox()),
        (Sandbox(network=True), Sandbox(network=True), Sandbox(network=True)),
    ],
)
def test_a_sandbox_is_what_either_demands(
    policy: Sandbox | None, demand: Sandbox | None, sandbox: Sandbox | None
) -> None:
    """The policy says at least, the runbook may say more."""
    found = rules(policy, Confinement(sandbox=demand))
    assert (found.sandbox, found.refusal, found.hidden) == (sandbox, "", ("/state",))


@pytest.mark.parametrize(
    ("policy", "demand", "executor", "told"),
    [
        (Sandbox(), Confinement(sandbox=Sandbox(network=True)), "", "--sandbox bwrap,network would"),
        (Sandbox(), Confinement(executor="docker:box"), "", "this worker's policy demands a sandbox"),
        (Sandbox(network=True), UNCONFINED, "docker:box", "this worker's policy demands a sandbox"),
        (None, Confinement(sandbox=Sandbox()), "docker:box", "the runbook demands a sandbox"),
    ],
)
def test_a_contradiction_is_a_refusal(
    policy: Sandbox | None, demand: Confinement, executor: str, told: str, tmp_path: Path
) -> None:
    """Nothing is executed that one of the two does not want executed so."""
    found = rules(policy, demand, executor)
    assert told in found.refusal
    with pytest.raises(Unconfinable, match=r"demands a sandbox|asks for the network"):
        found.invocation(str(tmp_path), str(tmp_path), {})


def test_limits_are_the_stricter_of_both_and_a_run_names_its_container() -> None:
    """The run's word on where it is executed comes before the runbook's."""
    demand = Confinement(limits=ResourceLimits(cpu=99, files=2, memory=7), executor="docker:one")
    found = rules(None, demand, "docker:two")
    assert found.limits == ResourceLimits(cpu=9, files=2, memory=7)
    assert (found.container, found.passed) == ("two", ("WORD",))
    assert rules(None, demand).container == "one"


def test_the_operators_reviewer_is_held_to_the_roots_alone() -> None:
    """Neither sandbox nor limits nor container are for the host's own program."""
    found = rules(Sandbox(), Confinement(limits=ResourceLimits(cpu=1))).of_operator()
    assert found == Rules(roots=("/srv",))


SANDBOXED = Rules(sandbox=Sandbox())
IN_BOX = Rules(container="box")


def test_the_words_of_a_wrapper_are_taken_out() -> None:
    """What came before them and after them stays, and is counted without them."""
    stderr = Captured(head=b"warning\n" + BEGUN + b"oh", tail=b"end", written=500)
    finished = begun(Finished(exit_code=3, stderr=stderr), SANDBOXED)
    assert finished.stderr == Captured(head=b"warning\noh", tail=b"end", written=500 - len(BEGUN))
    assert finished.exit_code == 3
    # A command may write the same; only the first one is the wrapper's.
    twice = begun(Finished(exit_code=0, stderr=Captured(head=BEGUN + BEGUN, written=2 * len(BEGUN))), SANDBOXED)
    assert twice.stderr.head == BEGUN


@pytest.mark.parametrize(
    ("rules", "exit_code", "stderr", "reason", "told"),
    [
        (SANDBOXED, 1, b"bwrap: no room", "spawn_failed", "its sandbox could not be made: bwrap: no room"),
        (IN_BOX, 1, b"No such container", "spawn_failed", "in the container 'box': No such container"),
        (IN_BOX, 125, b"", "spawn_failed", "exit status 125"),
        (IN_BOX, 126, b"chdir", "config_error", "in the container 'box': chdir"),
        (IN_BOX, 127, b"/bin/sh: not found", "config_error", "/bin/sh: not found"),
        (IN_BOX, 0, b"", "spawn_failed", "exit status 0"),
    ],
)
def test_what_never_began_is_no_verdict_on_the_work(
    rules: Rules, exit_code: int, stderr: bytes, reason: str, told: str
) -> None:
    """Whatever status the wrapper left: 0 too, because nothing was tested."""
    finished = begun(Finished(exit_code=exit_code, stderr=Captured(head=stderr, written=len(stderr))), rules)
    found, note = judge(finished, Check(Command("x")), CheckContext("k", "/", {}, "p", "r", "n", rules=rules))
    assert found == reason
    assert told in note


def test_what_was_ended_on_purpose_before_it_began_says_so() -> None:
    """A timeout and a cancellation stay what they are."""
    for finished in (Finished(signal=9, timed_out=True), Finished(exit_code=143, cancelled="shutdown")):
        assert begun(finished, SANDBOXED) == finished


@pytest.mark.parametrize(
    ("url", "paths"),
    [
        ("unix:///run/redis.sock", ("/run/redis.sock",)),
        ("unix:///run/redis.sock?db=2", ("/run/redis.sock",)),
        ("redis://:secret@host:6379/0", ()),
        ("", ()),
    ],
)
def test_the_socket_of_a_store_is_known(url: str, paths: tuple[str, ...]) -> None:
    """It is shown in no sandbox; a network address is no file."""
    assert socket_of(url) == paths


def test_a_predicate_sees_what_its_sandbox_shows(tmp_path: Path) -> None:
    """The state in a workspace is hidden, and a workspace in the state is not: trials of sweeps have theirs there."""
    (tmp_path / "state" / "sweeps" / "trial").mkdir(parents=True)
    state, trial = str(tmp_path / "state"), str(tmp_path / "state" / "sweeps" / "trial")
    rules = Rules(sandbox=Sandbox(), hidden=(state,))
    assert rules.file(trial, trial, f"{trial}/answer") == f"{os.path.realpath(trial)}/answer"
    with pytest.raises(Unconfinable, match="belongs to the state"):
        rules.file(str(tmp_path), str(tmp_path), f"{state}/redis.log")


def test_a_command_works_in_the_folder_that_was_looked_at(tmp_path: Path) -> None:
    """With roots, a link that is exchanged afterwards leads nobody out."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "link").symlink_to("inner")
    link = str(tmp_path / "link")
    assert Rules(roots=(str(tmp_path),)).invocation(link, link, {}).cwd == os.path.realpath(tmp_path / "inner")
    assert Rules().invocation(link, link, {}).cwd == link
