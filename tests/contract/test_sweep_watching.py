"""What somebody who watches a sweep sees: where it stands, what went wrong, what holds it back; and what that costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from statem_dist.deadline import Deadline
from statem_dist.errors import NotFound
from statem_dist.store.client import Argument, Client, Subscription
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep.ledger import Ledger
from statem_dist.sweep.model import Definition, Planned, Usage
from statem_dist.sweep.watching import (
    TOLD_MAX,
    LineView,
    LiveView,
    Look,
    Watcher,
    watch,
)
from tests.contract.conftest import RedisBench
from tests.support.sweep_trials import begun, claimed, end, end_next

DEFINITION = Definition(
    name="night",
    file="/sweeps/night.sweep.yaml",
    folder="/sweeps",
    runbook="hash",
    runbook_path="/sweeps/gate.yaml",
    axes=("model",),
    listed=("model",),
    success=("done",),
    concurrency=4,
    retries=2,
)


class Counting:
    """A client that counts the commands that go through it.

    Args:
        client: sends them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.commands = 0

    def call(self, *command: Argument) -> Any:
        """Send one command."""
        self.commands += 1
        return self._client.call(*command)

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Send several commands."""
        prepared = list(commands)
        self.commands += len(prepared)
        return self._client.call_many(prepared)

    def subscribe(self, channels: Sequence[str]) -> Subscription:
        """Listen to channels."""
        return self._client.subscribe(channels)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()


class Post:
    """A watched sweep, a clock that stands still, and whether workers are there."""

    def __init__(self, bench: RedisBench) -> None:
        self.client = Counting(bench.redis_store.client)
        self.ledger = Ledger(RedisStore(self.client, patience_seconds=30))
        self.served = True
        self.now = 0

    def serves(self, queue: str) -> bool:
        """Return whether workers are there; no other queue is asked for."""
        assert queue == "trials"
        return self.served

    def clock(self) -> int:
        """Return the time that somebody has set."""
        return self.now

    def stored(self, trials: int = 8, **changes: Any) -> None:
        """Store a sweep whose trials wait."""
        definition = replace(DEFINITION, **changes)
        self.ledger.create("night-1", definition, "print", "ada")
        planned = [Planned(n, {"model": ("opus", "sonnet")[n % 2]}, (n + 1) // 2) for n in range(1, trials + 1)]
        self.ledger.add("night-1", definition, planned)
        self.ledger.steer("night-1", "active", ["planning"])
        self.now = self.ledger.require("night-1").created_at

    def watcher(self, **more: Any) -> Watcher:
        """Return somebody who watches it."""
        return Watcher(self.ledger, self, self.clock, "night-1", **more)


@pytest.fixture
def post(real_bench: RedisBench) -> Post:
    """A sweep of eight trials on an empty Redis."""
    found = Post(real_bench)
    found.stored()
    return found


def seen(look: Look, width: int = 100) -> list[str]:
    """Return the lines of the live view on a terminal of that width."""
    out = StringIO()
    view = LiveView(
        Console(file=out, width=width, height=40, force_terminal=True, color_system=None, legacy_windows=False)
    )
    view.show(look)
    view.close()
    text = out.getvalue().replace("\x1b[?25l", "").replace("\x1b[?25h", "")
    # What is left is the last drawing, behind the codes that went back to draw over the one before.
    return [line.rstrip() for line in text.rpartition("\x1b[1A\x1b[2K")[2].replace("\r\x1b[2K", "").splitlines()]


def test_the_live_view(post: Post) -> None:
    """It has the status, the counts with their signs, slots and cost, the slowest trials, troubles, and obstacles."""
    claim = claimed(post.ledger, "night-1")
    end(post.ledger, claim, "passed", usage=Usage(cost_usd=1.5))
    claim = claimed(post.ledger, "night-1")
    end(post.ledger, claim, "failed", node="never", detail="ended on 'never'")
    slow, fast = claimed(post.ledger, "night-1"), claimed(post.ledger, "night-1")
    begun(post.ledger, fast, started_at=post.now + 60_000)
    begun(post.ledger, slow, node="repair", started_at=post.now)
    post.ledger.hold("night-1", "host-b", "300 MB are free, 512 MB are demanded")
    post.now += 125_000
    lines = seen(post.watcher().look())
    assert lines == [
        "night-1  active  2/8 ended  2 min 05 s",
        lines[1],
        "✓ 1 passed  ✗ 1 failed  ▶ 2 running  · 4 pending  slots 2/4  $1.50",
        "Longest under way",
        "  #3 model=sonnet (2)  repair  2 min 05 s  worker:here:1:1",
        "  #4 model=opus (2)    work    1 min 05 s  worker:here:1:1",
        "Latest troubles",
        "  ✗ #2 model=opus (1): failed, failure_end: ended on 'never'",
        "Held back",
        "  host-b begins no trial: 300 MB are free, 512 MB are demanded",
    ]
    assert set(lines[1]) <= set("━╸╺ ")
    assert max(map(len, seen(post.watcher().look(), width=40))) <= 40, "a narrow terminal gets no wrapped lines"


def test_the_live_view_of_a_hostile_sweep(post: Post) -> None:
    """What agents and checks say moves no cursor and means no markup."""
    claim = claimed(post.ledger, "night-1")
    end(post.ledger, claim, "failed", detail="[red]\x1b[2J boo")
    lines = seen(post.watcher(from_the_start=True).look())
    assert sum(r"[red]\x1b[2J boo" in line for line in lines) >= 1
    assert not any("\x1b[2J" in line for line in lines)


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (["paused"], "paused: lunch; to go on: statem-dist sweep resume night-1"),
        (["stopped"], "stopped: lunch; to go on all the same: statem-dist sweep resume night-1"),
        ([], "no worker serves the queue 'trials': statem-dist worker -Q trials"),
    ],
)
def test_what_holds_a_sweep_back_is_said(post: Post, steps: list[Any], sentence: str) -> None:
    """Whoever watches a sweep in which nothing happens is told why, with the command that helps."""
    post.served = False
    for status in steps:
        post.ledger.steer("night-1", status, ["active"], "lunch")
    assert post.watcher().look().obstacles == (sentence,)


def test_nothing_holds_back_a_sweep_that_runs(post: Post) -> None:
    """With trials under way, or workers that are there, nobody is worried."""
    assert post.watcher().look().obstacles == ()
    post.served = False
    claimed(post.ledger, "night-1")
    assert post.watcher().look().obstacles == ()


def test_troubles_are_told_once_as_they_happen(post: Post) -> None:
    """Failures and second attempts are news at the next look; success is not."""
    watcher = post.watcher()
    end_next(post.ledger, "night-1", "passed", "failed")
    end(post.ledger, claimed(post.ledger, "night-1"), None, detail="the worker was lost")
    assert watcher.look().news == (), "what was before is no news to whoever comes later"
    end_next(post.ledger, "night-1", "stuck")
    assert watcher.look().news == ("∞ #3 model=sonnet (2): stuck, max_steps",)
    assert watcher.look().news == ()
    first = post.watcher(from_the_start=True).look()
    assert first.news == ("✗ #2 model=opus (1): failed, failure_end", "∞ #3 model=sonnet (2): stuck, max_steps")
    end(post.ledger, claimed(post.ledger, "night-1"), None, detail="the worker\nwas lost")
    assert watcher.look().news == ("↻ #4 model=opus (2): worker_lost: the worker was lost; attempt 2 follows",)


def test_many_troubles_are_counted(post: Post) -> None:
    """A thousand failures between two looks are no thousand lines."""
    post.ledger.remove("night-1")
    post.stored(TOLD_MAX + 7)
    watcher = post.watcher(from_the_start=True)
    end_next(post.ledger, "night-1", *["error"] * (TOLD_MAX + 7))  # type: ignore[arg-type]
    news = watcher.look().news
    assert news[0] == "7 more trials have not passed"
    assert len(news) == TOLD_MAX + 1


def test_a_look_costs_the_same_whatever_the_number_of_trials(post: Post) -> None:
    """A few commands, for eight trials as for two thousand."""

    def cost() -> int:
        watcher = post.watcher()
        watcher.look()
        begun(post.ledger, claimed(post.ledger, "night-1"))
        before = post.client.commands
        watcher.look()
        return post.client.commands - before

    few = cost()
    assert few <= 12
    post.ledger.remove("night-1")
    post.stored(2_000)
    end_next(post.ledger, "night-1", *["passed"] * 50)  # type: ignore[arg-type]
    assert cost() <= few


def test_the_time_that_is_left(post: Post) -> None:
    """It goes by the pace since the first look, and nothing is said before three trials have ended."""
    watcher = post.watcher()
    assert watcher.look().seconds_left is None
    post.now += 10_000
    end_next(post.ledger, "night-1", "passed", "passed")
    assert watcher.look().seconds_left is None
    end_next(post.ledger, "night-1", "passed")
    post.now += 20_000
    assert watcher.look().seconds_left == pytest.approx(50)
    post.ledger.steer("night-1", "paused", ["active"])
    assert watcher.look().seconds_left is None, "nobody knows how long a pause takes"


def test_lines_where_there_is_no_terminal(post: Post) -> None:
    """Troubles at once, obstacles once, and where it stands now and then."""
    out = StringIO()
    view = LineView(out, seconds=0)
    watcher = post.watcher(from_the_start=True)
    post.served = False
    post.now += 5_000
    view.show(watcher.look())
    view.show(watcher.look())
    end_next(post.ledger, "night-1", "error")
    post.now += 60_000
    view.show(watcher.look())
    assert out.getvalue().splitlines() == [
        "Held back: no worker serves the queue 'trials': statem-dist worker -Q trials",
        "5.0 s  0/8 ended  8 pending",
        "5.0 s  0/8 ended  8 pending",
        "! #1 model=sonnet (1): error, agent_not_started",
        "1 min 05 s  1/8 ended  1 error, 7 pending",
    ]


def test_watching_ends_with_the_sweep(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """With it, with the deadline, when somebody wants to stop, or with an error when it is removed."""
    view = LineView(StringIO())
    assert watch(post.watcher(), view, deadline=Deadline(0)).status == "active"
    assert watch(post.watcher(), view, stopping=lambda: True).status == "active"
    monkeypatch.setattr(
        "statem_dist.sweep.watching.time.sleep", lambda _: end_next(post.ledger, "night-1", "passed", "passed")
    )
    ended = watch(post.watcher(), view)
    assert (ended.status, ended.counts["passed"]) == ("finished", 8)
    post.ledger.remove("night-1")
    with pytest.raises(NotFound):
        watch(post.watcher(), view)
