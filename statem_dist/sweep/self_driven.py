"""Driving a trial whose agent moves its run by itself: with ``statem-dist goto``, at the service, until the end.

The agent is started once. While it works, what its run owes is executed here, where the workspace is. An agent that
stops before its run has ended is started again with the prompt that takes the run up, a bounded number of times; one
that goes on after the end of its run is given a while to finish what it says.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Protocol

from msgspec.structs import replace

from statem_dist.checks.process import Finished
from statem_dist.deadline import Deadline
from statem_dist.follow import Settled
from statem_dist.history import Move, moves
from statem_dist.protocol.model import Run
from statem_dist.resume import Address, resume_prompt
from statem_dist.store.watch import Watch
from statem_dist.sweep.agents import Verdict, filled_in
from statem_dist.sweep.driver import Bench, Journey, blocked_facts, executions
from statem_dist.sweep.model import Agent, Blocked
from statem_dist.views import result_views

LOOK_SECONDS = 1.0
"""How often it is looked whether the agent has ended, or has to be, when nothing is announced of its run."""

INSIST_SECONDS = 0.1
"""After how long an agent that was told to end is told so again."""

LAST_WORDS_SECONDS = 30.0
"""How long an agent may go on after its run has ended."""


class SelfDrivenBench(Bench, Protocol):
    """What such a driver needs of the process that it works in."""

    def end_agent(self, run_id: str) -> None:
        """End the agent command of a trial."""


def travel(journey: Journey, bench: SelfDrivenBench, agent: Agent, command: str) -> Verdict:
    """Start the agent, and see its run through until there is a verdict.

    Args:
        journey: the attempt.
        bench: where it is driven.
        agent: the agent.
        command: how the agent calls this tool.

    Raises:
        GivenUp: it is to be driven no further here.
    """
    run, refusals = journey.begin()
    if isinstance(run, Verdict):
        return run
    while (verdict := journey.ended(run) or journey.check_time()) is None:
        if journey.stops > agent.continuations:
            return Verdict("agent_gave_up", f"on '{run.node}': it has stopped {journey.stops} times")
        prompt = resume_prompt(run, journey.runbook, Address(command, run.id, "", at="service"))
        told = blocked_facts(run, refusals) if refusals else None
        verdict = _one_call(journey, bench, agent, run, filled_in(prompt, journey.place.env), told)
        run = bench.engine.run(run.id)
        count_from_history(journey, run)
        # What has been reached counts, however the agent ended.
        if ended := journey.ended(run):
            return ended
        if verdict is not None:
            return verdict
        # A call that was interrupted with its worker does not come here.
        journey.stops += 1
        if journey.attempt.steps >= journey.definition.max_steps:
            return Verdict("max_steps", f"on '{run.node}' after {journey.attempt.steps} gotos")
        last = run.transition
        refusals = [Settled(run=run, transition=last)] if last is not None and last.outcome == "blocked" else []
    return verdict


def _one_call(
    journey: Journey, bench: SelfDrivenBench, agent: Agent, run: Run, prompt: str, told: dict[str, object] | None
) -> Verdict | None:
    """Run the agent until it ends, and meanwhile execute what its run owes."""
    variables, timeout = journey.before_call(agent, run, prompt, told)
    answer: list[Finished] = []
    over = threading.Event()
    with bench.engine.watcher.watch(run.id) as watch:

        def work() -> None:
            try:
                answer.append(bench.call_agent(agent, run, journey.place, variables, prompt, timeout))
            finally:
                over.set()
                watch.wake()

        thread = threading.Thread(target=work, name=f"statem-agent-{run.id}", daemon=True)
        thread.start()
        try:
            _serve(journey, bench, run.id, watch, over)
        except BaseException:
            # Whatever has ended the watch over it, nobody is to find the agent at work beside another one.
            while not over.is_set():
                bench.end_agent(run.id)
                over.wait(INSIST_SECONDS)
            raise
        thread.join()
    ended = answer[0] if answer else Finished(failure="supervisor_lost", text="the call of the agent broke off")
    if ended.cancelled is not None and bench.engine.run(run.id).final:
        ended = replace(ended, cancelled=None)
    return journey.after_call(agent, run, ended, timeout)


def _serve(journey: Journey, bench: SelfDrivenBench, run_id: str, watch: Watch, over: threading.Event) -> None:
    """Execute what the run of an agent owes until its work is over; end the agent when it must not go on."""
    engine = bench.engine
    patience: Deadline | None = None
    while not over.is_set():
        run = engine.run(run_id)
        if run.in_flight is not None:
            engine.see_through(run_id, journey.until)
        elif run.ended:
            patience = patience or Deadline(LAST_WORDS_SECONDS)
        if journey.until.passed or (patience is not None and patience.passed) or _is_over(journey, run):
            bench.end_agent(run_id)
            over.wait(INSIST_SECONDS)
        if not over.is_set():
            watch.wait(run.version, LOOK_SECONDS)


def _is_over(journey: Journey, run: Run) -> bool:
    """Return whether a run has made more steps than a trial may."""
    return run.transitions > journey.definition.max_steps and run.in_flight is None and not run.final


def count_from_history(journey: Journey, run: Run) -> None:
    """Take the counts of an attempt from what its run tells of itself, as the agent's steps are seen by nobody else."""
    blocks: Counter[tuple[str, str, str]] = Counter()
    visits: Counter[str] = Counter()
    steps = blocked = checks = 0
    for told in moves(journey.engine.log, run):
        if not isinstance(told, Move):
            continue
        transition = told.transition
        checks += executions(Settled(run=run, transition=transition))
        steps += transition.kind == "goto"
        if transition.outcome == "blocked":
            blocked += 1
            for view in result_views(transition):
                if not view["passed"] and not view["continued"]:
                    blocks[transition.source, transition.target, str(view.get("name") or view["id"])] += 1
        elif transition.entered:
            visits[transition.target] += 1
    journey.attempt = replace(
        journey.attempt,
        steps=steps,
        blocked=blocked,
        checks=checks,
        node=run.node,
        loops=max(visits.values(), default=1) - 1,
        blocks=tuple(Blocked(*key, times) for key, times in sorted(blocks.items())),
    )
