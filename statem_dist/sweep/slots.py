"""The slots of one worker process: each drives one trial at a time, from the claim to the result in the ledger."""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from statem_dist.checks.confinement import rules_for
from statem_dist.checks.environment import statem_variables
from statem_dist.checks.process import SHUTDOWN, Finished, Supervisor, end_agents
from statem_dist.deadline import Deadline
from statem_dist.engine import Engine
from statem_dist.errors import Conflict, NotFound, StatemError, StoredDataUnreadable, Unavailable
from statem_dist.evidence import backing_view, backings
from statem_dist.executor import MakeEnvironment, socket_of
from statem_dist.files import write_anew
from statem_dist.history import history, moves
from statem_dist.identity import process_here
from statem_dist.protocol.graph import UNCONFINED
from statem_dist.protocol.model import Place, Run
from statem_dist.settings import Settings
from statem_dist.sweep import agents, artifacts, self_driven, workspaces
from statem_dist.sweep.agents import Desk, Verdict
from statem_dist.sweep.budget import concluded, pause_before, troubles_after
from statem_dist.sweep.driver import DETAIL_LENGTH_MAX, DRIVER, GivenUp, Journey
from statem_dist.sweep.hints import Hints
from statem_dist.sweep.holding import Held, Holding
from statem_dist.sweep.ledger import Ledger
from statem_dist.sweep.model import Agent, Attempt, Position, Status, Trial, variable_of
from statem_dist.sweep.plan import seed_of, slug
from statem_dist.sweep.stopping import stop_if_due
from statem_dist.sweep.taking import Taken, Taker
from statem_dist.tokens import Tokens

WORKSPACES_CACHE = "git"
"""Folder beside the sweeps for mirrors of repositories."""

LOOK_SECONDS = 0.2
"""How often it is looked whether an attempt that has not begun yet is to be given up."""

TOKEN_SPARE_SECONDS = 3600.0
"""How much longer the token of a self-driven agent lives than the agent may."""

COMMAND = f"{sys.executable} -m statem_dist.cli.main"
"""How an agent calls this tool; it need not be on its PATH."""

logger = logging.getLogger(__name__)


class Means(Struct, frozen=True):
    """What a process works on trials with.

    ``environment`` makes the environment of commands, ``passed`` names variables of this process that they get, and
    ``service_url`` says where self-driven agents find the service; None where there is none. ``end_checks`` ends the
    checks of trials, and lets no more of them begin.
    """

    settings: Settings
    store_url: str
    engine: Engine
    supervisor: Supervisor
    environment: MakeEnvironment
    ledger: Ledger
    hints: Hints
    tokens: Tokens
    worker: str
    passed: tuple[str, ...]
    service_url: Callable[[], str | None]
    end_checks: Callable[[], object]


class Slots:
    """Drives trials for one process; each call of ``drive_next`` occupies its thread for the length of one trial.

    Args:
        means: what they are driven with.
        taker: takes trials.
        holding: keeps what is taken.
    """

    def __init__(self, means: Means, taker: Taker, holding: Holding) -> None:
        self.engine = means.engine
        self._means = means
        self._taker = taker
        self._holding = holding
        self._stopping = threading.Event()
        self._host = socket.gethostname()
        self._folder = means.settings.state_dir / "sweeps"

    def drive_next(self, queue: str) -> bool:
        """Take the next trial that waits for a queue, drive it to its end, and wake a slot for the one after it.

        Returns:
            Whether there was one.
        """
        taken = None if self._stopping.is_set() else self._taker.take(queue)
        if taken is None:
            return False
        try:
            self._drive(taken)
        finally:
            self._taker.release(taken)
        # A slot is free: this one, or another that is quicker.
        if not self._stopping.is_set():
            self._means.hints.send(queue)
        return True

    def stop(self, grace_seconds: float) -> None:
        """Take no more; after the grace, hand back what is being driven."""
        self._stopping.set()
        timer = threading.Timer(grace_seconds, self._hand_back)
        timer.daemon = True
        timer.start()

    def _hand_back(self) -> None:
        self._holding.give_up_all("shutdown")
        # Not before: a driver whose checks are handed back while its trial goes on would claim them again and again.
        self._means.end_checks()

    # --- one trial -------------------------------------------------------------------------------------------------

    def _drive(self, taken: Taken) -> None:
        """Drive a trial that was taken, and settle it."""
        claim, definition = taken.claim, taken.definition
        trial = next(self._means.ledger.trials(claim.sweep_id, [claim.number]))
        drive = _Drive(self._means, self._folder, self._host, taken, trial)

        def renew(status: Status) -> None:
            self._taker.renew(taken)
            drive.look_at_run(status)

        held = Held(claim, drive.until, drive.end, renew)
        with self._holding.hold(held):
            if not self._means.ledger.note(claim, drive.attempt, self._holding.lease_ms):
                return
            if trial.last is not None and (before := process_here(trial.last.worker)) is not None:
                # It may have been silent and not dead: nobody is to work beside its agent.
                end_agents(before, drive.attempt.run_id)
            drive.go(held, self._holding)
        stop_if_due(self._means.ledger, claim.sweep_id, definition)


class _Drive:
    """One trial that was taken."""

    def __init__(self, means: Means, folder: Path, host: str, taken: Taken, trial: Trial) -> None:
        self._means = means
        self._taken = taken
        self._planned = trial.planned
        self._definition = taken.definition
        self._cache = folder.parent / WORKSPACES_CACHE
        self._host = host
        self.engine = means.engine
        self.attempt, self._fresh = self._attempt(trial, folder)
        self.until = Deadline(self._seconds_left())
        self._token_id = ""

    @property
    def _workspace(self) -> Path:
        return Path(self.attempt.folder) / "workspace"

    def go(self, held: Held, holding: Holding) -> None:
        """Drive it until there is a verdict, and tell the ledger; or give it up."""
        claim, ledger = self._taken.claim, self._means.ledger

        def note(attempt: Attempt) -> None:
            self.attempt = attempt
            if held.why or not ledger.note(claim, attempt, holding.lease_ms):
                raise GivenUp

        try:
            verdict = self._verdict(note, lambda: holding.is_given_up(held))
        except GivenUp:
            verdict = None
        except Unavailable:
            # Nothing can be told to a store that is away; whoever finds the lease run out goes on with the trial.
            raise
        except StatemError as error:
            verdict = Verdict("internal_error", error.message)
        except Exception as error:
            # A defect or a full disk: it must cost this attempt and no other, and be seen.
            logger.exception("trial %d of sweep %s", claim.number, claim.sweep_id)
            verdict = Verdict("internal_error", f"{type(error).__name__}: {error}")
        finally:
            self._end_token()
        # Whose claim has run out must not touch the run and the files of whoever has the trial now.
        if not (holding.is_given_up(held) or ledger.note(claim, self.attempt, holding.lease_ms)):
            held.give_up("lost")
        if held.why == "lost":
            logger.warning("trial %d of sweep %s is lost to somebody else", claim.number, claim.sweep_id)
        elif held.why == "cancelled":
            self._conclude(Verdict("sweep_cancelled", "the sweep was cancelled"))
        elif verdict is None or (held.why == "shutdown" and verdict.reason in ("trial_timeout", "internal_error")):
            # What is torn down under a trial says nothing about it.
            ledger.settle(claim, self._planned.cell, self._definition, self.attempt, None)
        else:
            self._conclude(verdict)

    def end(self) -> None:
        """End its agent."""
        self.end_agent(self.attempt.run_id)

    def look_at_run(self, status: Status) -> None:
        """End its run if its sweep was cancelled, and its agent if somebody has terminated the run."""
        if status == "cancelled":
            self._end_run("the sweep was cancelled")
            return
        run = self.engine.find(self.attempt.run_id)
        if run is not None and run.ending is not None and run.ending.terminated:
            self.end_agent(run.id)

    # --- the bench of its driver -----------------------------------------------------------------------------------

    def call_agent(
        self, agent: Agent, run: Run, place: Place, variables: dict[str, str], stdin: str, timeout: float
    ) -> Finished:
        """Run the agent command of the trial where its run stands, and wait for its end."""
        means = self._means
        own = statem_variables(
            run_id=run.id,
            spec=place.spec,
            state_dir=place.state_dir,
            current=run.node,
            purpose="agent",
            entry_id=run.entry_id,
            agent_id=DRIVER.id,
            agent_role=DRIVER.role,
            check_key=f"{run.entry_id}.agent.{self.attempt.calls}",
        )
        handed_on = {name: os.environ[name] for name in agent.pass_env if name in os.environ}
        if agent.mode == "self_driven":
            variables = variables | self._address(agent)
        environ = means.environment(place, handed_on | own | variables)
        rules = rules_for(
            means.settings,
            UNCONFINED,
            place,
            hidden=(str(means.settings.state_dir), *socket_of(means.store_url)),
            passed=(*means.passed, *place.env, *handed_on, *own, *variables),
        )
        key = _agent_key(run.id, self._taken.claim.token)
        finished = agents.call(agent, key, place.workspace, environ, stdin, timeout, rules, means.supervisor)
        self._see_to_workspace()
        return finished

    def _see_to_workspace(self) -> None:
        """Put an empty folder where the agent has left none: its checks are to judge that, as all that it has done.

        Without one they could not be evaluated, which counts as the host's trouble and is tried again.
        """
        workspace = self._workspace
        with suppress(OSError):
            if workspace.is_symlink() or not workspace.is_dir():
                workspace.unlink(missing_ok=True)
                workspace.mkdir()

    def end_agent(self, run_id: str) -> None:
        """End the agent command of the trial."""
        self._means.supervisor.cancel(_agent_key(run_id, self._taken.claim.token), SHUTDOWN)

    # --- parts -----------------------------------------------------------------------------------------------------

    def _attempt(self, trial: Trial, folder: Path) -> tuple[Attempt, bool]:
        """Return the attempt that is to be driven, and whether it is a new one."""
        claim, last = self._taken.claim, trial.last
        if last is not None and last.outcome is None:
            return replace(last, worker=self._means.worker, claim=claim.token), False
        troubles = troubles_after(last) if last is not None and last.retried else 0
        # What follows an error by itself begins after a pause, which is no part of its time.
        begins = self._means.ledger.clock() + round(1000 * pause_before(troubles, random.random()))
        number = 1 if last is None else last.attempt + 1
        suffix = "" if number == 1 else f"-a{number}"
        repetition = f"trial-{trial.planned.repetition}"
        return Attempt(
            number=claim.number,
            attempt=number,
            run_id=f"{claim.sweep_id}-{claim.number}{suffix}",
            queued_at=claim.ready_at,
            started_at=begins,
            worker=self._means.worker,
            host=self._host,
            folder=str(folder / claim.sweep_id / slug(trial.planned.cell) / repetition / f"attempt-{number}"),
            revision=self._taken.revision,
            troubles=troubles,
            claim=claim.token,
        ), True

    def _seconds_left(self) -> float | None:
        limit = self._definition.trial_timeout
        if limit is None:
            return None
        if not self._fresh:
            # Neither the time that it waited for another worker counts, nor a call that is to be repeated.
            return max(0.0, limit - (self.attempt.position or Position()).spent)
        return max(0.0, limit - (self._means.ledger.clock() - self.attempt.started_at) / 1000)

    def _verdict(self, note: Callable[[Attempt], None], given_up: Callable[[], bool]) -> Verdict:
        """Prepare the workspace if that was not done, and drive the attempt.

        Raises:
            GivenUp: it is to be driven no further here.
        """
        if not self._fresh and self.attempt.host != self._host and not self._workspace.exists():
            return Verdict("workspace_failed", f"its workspace is on the host {self.attempt.host}, which has lost it")
        while (ahead := self.attempt.started_at - self._means.ledger.clock()) > 0:
            if given_up():
                raise GivenUp
            time.sleep(min(ahead / 1000, LOOK_SECONDS))
        run = None if self._fresh else self.engine.find(self.attempt.run_id)
        if run is None:
            try:
                workspaces.prepare(self._definition, self._planned.cell, self._workspace, self._cache)
            except (StatemError, OSError) as error:
                text = error.message if isinstance(error, StatemError) else str(error)
                return Verdict("workspace_failed", f"its workspace could not be made: {text}")
        journey = Journey(
            self,
            self._definition,
            # A run goes on by the runbook that it has begun with, also when the sweep follows another one by now.
            self.engine.runbook(self._definition.runbook if run is None else run.runbook),
            self._place(),
            self._labels(),
            self.attempt,
            self._fresh,
            Desk(Path(self.attempt.folder) / "agent"),
            self.until,
            given_up,
            note,
        )
        agent = self._definition.agent
        try:
            if agent is not None and agent.mode == "self_driven":
                if self._means.service_url() is None:
                    return Verdict("agent_not_started", _NO_SERVICE)
                return self_driven.travel(journey, self, agent, COMMAND)
            return journey.travel()
        finally:
            self.attempt = journey.standing()

    def _place(self) -> Place:
        """Return where the checks and the agent work, and with which variables."""
        planned, definition = self._planned, self._definition
        values = {**definition.vars, **planned.cell}
        return Place(
            workspace=str(self._workspace),
            spec=definition.runbook_path,
            state_dir=str(self._means.settings.state_dir),
            # Checks in Python want the interpreter that has the sweep's packages, wherever their worker came from.
            env={
                "STATEM_PYTHON": sys.executable,
                **definition.env,
                **{variable_of(name): value for name, value in values.items()},
                "STATEM_SWEEP": self._taken.claim.sweep_id,
                "STATEM_SWEEP_DIR": definition.folder,
                "STATEM_TRIAL": str(planned.repetition),
                "STATEM_SEED": str(seed_of(definition.seed, planned.cell, planned.repetition)),
            },
        )

    def _labels(self) -> dict[str, str]:
        """Return the labels of its run."""
        return {
            **self._definition.labels,
            **self._planned.cell,
            "sweep": self._taken.claim.sweep_id,
            "trial": str(self._planned.number),
            "repetition": str(self._planned.repetition),
            "attempt": str(self.attempt.attempt),
        }

    def _address(self, agent: Agent) -> dict[str, str]:
        """Return how a self-driven agent reaches its run, and no other."""
        url = self._means.service_url()
        assert url is not None, "looked for before"
        self._end_token()
        names = ("sweep", "trial", "attempt")
        labels = {name: value for name, value in self._labels().items() if name in names}
        life = agent.timeout + TOKEN_SPARE_SECONDS
        token, text = self._means.tokens.create(f"trial {self.attempt.run_id}"[:100], "agent", labels, life, "sweep")
        self._token_id = token.id
        return {"STATEM_URL": url, "STATEM_TOKEN": text, "STATEM_COMMAND": COMMAND}

    def _end_token(self) -> None:
        if self._token_id:
            with suppress(StatemError):
                self._means.tokens.forget(self._token_id)
            self._token_id = ""

    def _conclude(self, verdict: Verdict) -> None:
        """Keep what is to be kept of the attempt, and tell the ledger how it ended."""
        claim, ledger = self._taken.claim, self._means.ledger
        if verdict.reason not in ("success_end", "failure_end"):
            self._end_run(f"its trial has ended: {verdict.reason}")
        attempt, outcome = concluded(
            self.attempt, verdict.reason, verdict.detail[:DETAIL_LENGTH_MAX], ledger.clock(), self._definition.retries
        )
        self._keep(attempt)
        done = ledger.settle(claim, self._planned.cell, self._definition, attempt, outcome, used=attempt.usage)
        told = attempt.reason if done else f"{attempt.reason}, too late to count"
        logger.info("trial %d of sweep %s: %s", claim.number, claim.sweep_id, told)
        keep = self._definition.workspace.keep
        if keep == "none" or (keep == "unless_passed" and outcome == "passed"):
            # After the result is there: whatever this takes, nobody waits for it.
            workspaces.discard(self._workspace)

    def _end_run(self, why: str) -> None:
        """End the run of the attempt, if it has not ended."""
        try:
            self.engine.cancel_run(self.attempt.run_id, why, DRIVER, terminate=True)
        except (Conflict, NotFound):
            pass
        except StoredDataUnreadable as error:
            logger.warning("the run %s cannot be ended: %s", self.attempt.run_id, error.message)

    def _keep(self, attempt: Attempt) -> None:
        """Write what is told of the attempt beside its workspace. Whatever fails here costs no result."""
        folder = Path(attempt.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run = self.engine.find(attempt.run_id)
            if run is not None:
                entries = history(self.engine.log, run)
                lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
                write_anew(folder / "history.jsonl", lines)
                proofs = [backing_view(each) for each in backings(moves(self.engine.log, run))]
                write_anew(folder / "evidence.json", json.dumps(proofs, ensure_ascii=False))
            write_anew(folder / "result.json", msgspec.json.format(msgspec.json.encode(attempt), indent=1).decode())
            if self._definition.artifacts.paths:
                artifacts.collect(self._workspace, folder / "artifacts", self._definition.artifacts)
        except (OSError, StatemError) as error:
            logger.warning("what attempt %s leaves could not be kept: %s", attempt.run_id, error)


_NO_SERVICE = (
    "a self-driven agent moves its run at the service, and none is there: start it with `statem-dist up` or "
    "`statem-dist api`, or set STATEM_URL for the worker"
)


def _agent_key(run_id: str, token: int) -> str:
    """Return the name under which the supervisor knows the agent of a run that is driven under a claim."""
    return f"agent:{run_id}:{token}"
