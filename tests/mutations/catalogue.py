"""Deliberate bugs: each is a small patch, and says why it is bad and who has to catch it.

A patch is text that stands in a file exactly once and what takes its place. Where the code has changed so that the text
is not there any more, the mutation has to be written anew: a test says so.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from tests.simulation.faults import Kind

Catcher: TypeAlias = Literal["simulator", "store contract"]


class Mutation(Struct, frozen=True):
    """One deliberate bug.

    ``kinds`` are the faults of the worlds in which it is looked for (none: those that each world draws). ``seed`` is a
    world in which it was caught once; where worlds have changed since, those after it are looked at, too. ``told`` is
    a part of what the catcher says.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    told: str
    seed: int = 0
    kinds: tuple[Kind, ...] = ()
    catcher: Catcher = "simulator"


MUTATIONS = (
    Mutation(
        name="commit_without_comparing_the_version",
        file="statem_dist/store/lua/commit.lua",
        old="if current ~= tonumber(ARGV[3]) then\n  return {0, current}\nend\n"
        "-- The same version of another future, when this store has lost writes: not what was decided on.\n"
        "if ARGV[18] ~= '' and string.match(operations, ' (%x+):%d+$') ~= ARGV[18] then",
        new="if false then",
        why="Of two who decided on the same version both would write, and one history would overwrite the other.",
        seed=1,
        told="",
    ),
    Mutation(
        name="compare_the_version_without_its_past",
        file="statem_dist/store/lua/commit.lua",
        old="if ARGV[18] ~= '' and string.match(operations, ' (%x+):%d+$') ~= ARGV[18] then",
        new="if false then",
        why="After lost writes the same number stands for another past; what was decided on that one must not count.",
        seed=20,
        told="",
        kinds=("store rolled back", "message doubled", "reply lost"),
    ),
    Mutation(
        name="forget_the_operation_id",
        file="statem_dist/store/lua/commit.lua",
        old="if earlier then",
        new="if false then",
        why="A commit whose reply was lost is sent again, and takes its own success for somebody else's.",
        seed=13,
        told="nothing befell it",
        kinds=("reply lost",),
    ),
    Mutation(
        name="keep_the_leases_of_ended_claims",
        file="statem_dist/store/lua/commit.lua",
        old="redis.call('HDEL', KEYS[1], 'lease:' .. ARGV[at])",
        new="local _ = ARGV[at]",
        why="Leases of nobody would pile up with every check.",
        seed=1,
        told="and the leases",
    ),
    Mutation(
        name="renew_a_lease_that_has_run_out",
        file="statem_dist/store/lua/renew.lua",
        old="if expiry <= now then",
        new="if expiry == 0 then",
        why="Who slept past its lease would go on beside whoever is taking it over.",
        told="test_",
        catcher="store contract",
    ),
    Mutation(
        name="remind_whatever_has_changed",
        file="statem_dist/store/lua/remind.lua",
        old="if redis.call('HGET', KEYS[1], 'v') ~= ARGV[2] then",
        new="if false then",
        why="A reaper that is late would move the reminder of work that it has never seen.",
        told="test_",
        catcher="store contract",
    ),
    Mutation(
        name="drop_the_reminder",
        file="statem_dist/coordinator.py",
        old="due_ms=self._due_ms(after, now),",
        new="due_ms=None,",
        why="A message that is lost after the commit would be lost for good.",
        told="not at rest",
        kinds=("message dropped", "crash"),
    ),
    Mutation(
        name="never_expire_a_claim",
        file="statem_dist/coordinator.py",
        old="if not _lease_alive(snapshot, claim.token)",
        new="if snapshot.now < 0",
        why="What a dead worker has claimed would stay claimed.",
        told="not at rest",
        kinds=("crash",),
    ),
    Mutation(
        name="requeue_without_expiring",
        file="statem_dist/coordinator.py",
        old="ExpireClaim(transition=transition.id, token=claim.token)\n        for",
        new="ReturnWork(transition=transition.id, token=claim.token)\n        for",
        why="A hook whose worker was lost may have happened, and would be executed again.",
        seed=1,
        told="a second time",
        kinds=("crash",),
    ),
    Mutation(
        name="retry_a_hook",
        file="statem_dist/protocol/progress.py",
        old='return planned.purpose not in HOOK_PURPOSES or planned.check.type == "predicate"',
        new="return True",
        why="A hook would be executed a second time after its worker was lost, or after it failed.",
        seed=1,
        told="",
        kinds=("crash",),
    ),
    Mutation(
        name="no_bound_on_starts",
        file="statem_dist/protocol/decide.py",
        old="STARTS_MAX = 3",
        new="STARTS_MAX = 1000",
        why="A check that kills its workers would go on to do so for ever.",
        seed=60,
        told="",
        kinds=("crash", "freeze"),
    ),
    Mutation(
        name="count_a_start_only_when_it_has_ended",
        file="statem_dist/protocol/evolve.py",
        old="starts=_count(transition.starts, event.checks[0], 1),",
        new="starts=transition.starts,",
        why="What kills its worker never ends, and would never be counted.",
        seed=23,
        told="",
        kinds=("crash", "freeze"),
    ),
    Mutation(
        name="clear_results_on_return",
        file="statem_dist/protocol/evolve.py",
        old="return replace(run, transition=_released(transition, event.token, begun=-1))",
        new="return replace(run, transition=replace(_released(transition, event.token, begun=-1), results={}))",
        why="Hooks that have happened would be owed again when a worker hands back what comes after them.",
        seed=5,
        told="",
        kinds=("stop",),
    ),
    Mutation(
        name="offer_the_work_of_a_held_run",
        file="statem_dist/protocol/progress.py",
        old="if run.paused is not None or (run.ending is not None and not unwinding):",
        new="if False:",
        why="A run that somebody has paused or cancelled would go on.",
        seed=2,
        told="",
    ),
    Mutation(
        name="accept_the_result_of_another_claim",
        file="statem_dist/protocol/decide.py",
        old="    claim = transition.claim(token)\n    return None if claim is None else (transition, claim.checks)",
        new="    claim = transition.claim(token) or next(iter(transition.claims), None)\n"
        "    return None if claim is None else (transition, claim.checks)",
        why="A worker that slept through its lease would hand back, or expire, what another one is doing.",
        seed=48,
        told="",
        kinds=("freeze", "stop", "crash"),
    ),
    Mutation(
        name="open_a_repeated_request_anew",
        file="statem_dist/protocol/decide.py",
        old="return request_id in run.requests",
        new="return request_id == run.id",
        why="Who insists after a lost reply would move the run twice.",
        seed=3,
        told="",
        kinds=("reply lost", "crash"),
    ),
    Mutation(
        name="do_not_end_the_command_of_a_lost_claim",
        file="statem_dist/executor.py",
        old='lambda: self.supervisor.cancel(key, "lease lost")',
        new="lambda: None",
        why="The command would go on beside that of whoever has taken the work over.",
        seed=23,
        told="twice at the same time",
        kinds=("store away",),
    ),
    Mutation(
        name="trust_a_lease_from_its_answer_on",
        file="statem_dist/leases.py",
        old="                held.asked_at = asked_at\n",
        new="                held.asked_at = time.monotonic() + 10.0\n",
        why="A lease would be trusted for longer than the server keeps it.",
        seed=52,
        told="twice at the same time",
        kinds=("store away", "reply lost"),
    ),
    Mutation(
        name="take_over_beside_a_dying_command",
        file="statem_dist/inline.py",
        old="                outlive_commands(process)\n",
        new="                pass\n",
        why="The command of a killed caller would still run when the next caller begins it again.",
        seed=102,
        told="twice at the same time",
        kinds=("crash in a command",),
    ),
    Mutation(
        name="hand_back_what_was_begun",
        file="statem_dist/executor.py",
        old="                    if outcome.reason in CUT_SHORT and (repeatable(planned) or not outcome.begun):",
        new="                    if outcome.reason in CUT_SHORT:",
        why="A hook that was cut short may have happened, and would be executed again.",
        seed=13,
        told="a second time",
        kinds=("stop", "store away"),
    ),
    Mutation(
        name="tell_readers_nothing_of_lost_writes",
        file="statem_dist/eventlog.py",
        old="            if run.version < after:\n",
        new="            if run.version < 0:\n",
        why="A reader would wait for numbers that it believes to have seen, and miss what they stand for now.",
        seed=131,
        told="",
        kinds=("store rolled back",),
    ),
)
