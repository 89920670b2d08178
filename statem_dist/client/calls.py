"""What can be asked of the service, each as a value: the one description that every driver carries out.

A function here makes a ``Call``. Where an answer may need more than one call, it is a generator that yields calls, is
sent what each led to, and returns the last word (``Steps``) or hands out one page after the other (``Pages``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from statem_dist.client import results
from statem_dist.client.listening import Listening
from statem_dist.client.problems import error_of
from statem_dist.client.sse import Frame
from statem_dist.client.wire import Reply, Request
from statem_dist.deadline import Deadline
from statem_dist.errors import Invalid, StatemError
from statem_dist.protocol.model import Actor, OnManual, Run, Transition, WayOut
from statem_dist.roles import Role
from statem_dist.store.codec import decode_run, decode_runbook

T = TypeVar("T")
Document = TypeVar("Document")

POLL_SECONDS = 30.0
"""The longest that one request waits for a transition; who waits longer asks again."""

NOBODY_ELSE = Actor()
"""A caller that speaks for itself."""

PAGE = 200
"""Runs of a page, unless another number is asked for."""

OnExisting: TypeAlias = Literal["fail", "use_existing", "resume", "restart"]
Format: TypeAlias = Literal["yaml", "json"]
Drawing: TypeAlias = Literal["mermaid", "dot", "svg"]
Confirm: TypeAlias = bool | Sequence[str]
"""True confirms everything that asks; a sequence confirms checks by id, name or text."""


class Call(Struct, Generic[T], frozen=True):
    """One call: what to send, and how its answer is read.

    Every call may be repeated: GET, PUT and DELETE by their nature, a POST because each try carries the same
    ``Idempotency-Key``. ``key`` is that key; empty for one that the driver makes up. ``wait`` is how many seconds the
    service may take beyond the ordinary, ``expected`` the statuses from 400 on that are answers and no errors.
    """

    method: str
    path: str
    decode: Callable[[Reply], T]
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    headers: dict[str, str] = {}
    wait: float = 0.0
    key: str = ""
    expected: frozenset[int] = frozenset()

    def request(self, key: str) -> Request:
        """Return what is sent, at every try the same.

        Args:
            key: the idempotency key, for a call that has none of its own.
        """
        headers = {"Accept": "application/json", **self.headers}
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        if self.method == "POST":
            headers["Idempotency-Key"] = self.key or key
        query = f"?{urlencode(self.query)}" if self.query else ""
        return Request(self.method, self.path + query, headers, self.body)

    def result(self, reply: Reply) -> T:
        """Return what an answer says.

        Raises:
            StatemError: it tells of a problem, or it cannot be understood.
        """
        if reply.status >= 300 and reply.status not in self.expected:
            raise error_of(reply)
        try:
            return self.decode(reply)
        except (msgspec.DecodeError, LookupError, UnicodeDecodeError) as error:
            raise StatemError(
                f"The answer of the service to {self.method} {self.path} cannot be understood: {error}.",
                hint="Perhaps something else answers there, or the service is of another version.",
            ) from error


def plain(call: Call[Any]) -> Call[dict[str, Any]]:
    """Return a call whose answer is read as the JSON object that it is."""
    return msgspec.structs.replace(call, decode=_as(dict[str, Any]))


Steps: TypeAlias = Generator[Call[Any], Any, T]
"""Calls one after the other, and what they come to."""

Pages: TypeAlias = Generator[Call[results.Page[T]], results.Page[T], None]
"""Calls for one page after the other."""


class NewRun(Struct, frozen=True, kw_only=True):
    """A run to be started, of a registered runbook (``runbook``: its name or hash) or of a ``text``.

    ``vars`` become environment variables of its commands and are never shown again. ``workspace`` is an absolute path
    on the workers; without one the run gets a new folder. ``by`` is the agent that the caller speaks for.
    """

    runbook: str | None = None
    text: str | None = None
    source: str = "runbook.yaml"
    format: Format = "yaml"
    run_id: str | None = None
    on_existing: OnExisting = "fail"
    workspace: str | None = None
    spec: str = ""
    queue: str | None = None
    executor: str | None = None
    labels: Mapping[str, str] = {}
    vars: Mapping[str, str] = {}
    confirm: bool = False
    by: Actor = NOBODY_ELSE

    def body(self) -> dict[str, Any]:
        """Return the body of the request for it."""
        named = {
            "runbook": self.runbook,
            "run_id": self.run_id,
            "workspace": self.workspace,
            "queue": self.queue,
            "executor": self.executor,
            **_runbook_body(self.text, self.source, self.format),
            **_speaker(self.by),
        }
        plain = {
            "on_existing": self.on_existing,
            "spec": self.spec,
            "labels": dict(self.labels),
            "vars": dict(self.vars),
            "confirm": self.confirm,
        }
        return {name: value for name, value in named.items() if value is not None} | plain


# --- runbooks --------------------------------------------------------------------------------------------------------


def validate(
    text: str, *, source: str = "runbook.yaml", format: Format = "yaml", strict: bool = False
) -> Call[results.RunbookView]:
    """Look at a runbook, and return its outline with what is doubtful about it.

    Raises:
        RunbookInvalid: with every problem and its place in ``details["problems"]``.
    """
    body = {"text": text, "source": source, "format": format, "strict": strict}
    return _post("/v1/runbooks/validate", body, results.RunbookView)


def register(
    text: str, *, name: str | None = None, source: str = "runbook.yaml", format: Format = "yaml"
) -> Call[results.RunbookView]:
    """Register a runbook for others; its name stands for this version from now on."""
    body = {"text": text, "source": source, "format": format} | ({} if name is None else {"name": name})
    return _post("/v1/runbooks", body, results.RunbookView)


def runbooks(*, versions: bool = False) -> Call[tuple[results.RegistrationView, ...]]:
    """Return the registered runbooks by name, on request with all their versions."""
    return _list("/v1/runbooks", results.RegistrationView, _query(versions=str(versions).lower()))


def runbook(reference: str) -> Call[results.RunbookView]:
    """Return a registered runbook, named by its name, its hash or the beginning of that, with its text."""
    return _get(f"/v1/runbooks/{_part(reference)}", results.RunbookView)


def runbook_document(digest: str) -> Call[Any]:
    """Return a runbook as it is stored (``StoredRunbook``), also one that was only started."""
    return Call("GET", f"/v1/runbooks/{_part(digest)}/document", lambda reply: decode_runbook(reply.body))


# --- runs ------------------------------------------------------------------------------------------------------------


def start(new: NewRun, *, wait: float = 0.0, key: str = "") -> Steps[results.RunView]:
    """Start a run.

    Args:
        new: which one.
        wait: seconds to wait for the ``in_hook`` of its first node.
        key: an idempotency key of the caller's own, for a start that another process may repeat.

    Raises:
        Conflict: there is a run of that id, and ``new`` does not say what to do with it.
    """
    deadline = Deadline(wait)
    begun: results.RunView = yield start_call(new, wait=deadline.bound(POLL_SECONDS), key=key)
    if begun.transition is None or not begun.transition.pending:
        return begun
    settled = yield from seen_through(begun.transition, deadline)
    now: results.RunView = yield run(begun.run_id)
    return msgspec.structs.replace(now, transition=settled)


def start_call(new: NewRun, *, wait: float = 0.0, key: str = "") -> Call[results.RunView]:
    """Return the one request that starts a run."""
    return _post("/v1/runs", new.body(), results.RunView, wait=wait, key=key)


def start_many(new: Sequence[NewRun], *, key: str = "") -> Call[results.Bulk]:
    """Start up to 1,000 runs; each has an answer of its own, in the same order."""
    call = _post("/v1/runs/bulk", {"runs": [each.body() for each in new]}, results.Bulk, key=key)
    # The service answers when the last one has started, which takes as long as there are many.
    return replace(call, wait=0.1 * len(new))


def runs(
    *,
    status: str | None = None,
    labels: Mapping[str, str] | None = None,
    runbook: str | None = None,
    node: str | None = None,
    page_size: int = PAGE,
) -> Pages[results.RunSummary]:
    """Go through the runs that the caller reaches, newest first, page by page."""
    cursor: str | None = None
    while True:
        page = yield run_page(status=status, labels=labels, runbook=runbook, node=node, limit=page_size, cursor=cursor)
        cursor = page.next_cursor
        if cursor is None:
            return


def run_page(
    *,
    status: str | None = None,
    labels: Mapping[str, str] | None = None,
    runbook: str | None = None,
    node: str | None = None,
    limit: int = PAGE,
    cursor: str | None = None,
) -> Call[results.Page[results.RunSummary]]:
    """Return one page of runs; ``cursor`` is that of the page."""
    wanted = _query(status=status, runbook=runbook, node=node, limit=str(limit), cursor=cursor)
    return _get("/v1/runs", results.Page[results.RunSummary], wanted + _labels(labels))


def run(run_id: str) -> Call[results.RunView]:
    """Return where a run stands."""
    return _get(_run(run_id), results.RunView)


def document(run_id: str) -> Call[Run]:
    """Return a run as it is stored, for programs of the same version; values of its variables are withheld."""
    return Call("GET", f"{_run(run_id)}/document", lambda reply: decode_run(reply.body))


def graph(run_id: str) -> Call[results.GraphView]:
    """Return the graph of a run's runbook, with marks."""
    return _get(f"{_run(run_id)}/graph", results.GraphView)


def drawing(run_id: str, format: Drawing = "mermaid") -> Call[str]:
    """Return the same as a drawing."""
    query = _query(format=format)
    return Call("GET", f"{_run(run_id)}/graph", lambda reply: reply.body.decode(), query, headers={"Accept": "*/*"})


def next(run_id: str) -> Call[tuple[results.EdgeView, ...]]:
    """Return the ways out of the current node."""
    return _list(f"{_run(run_id)}/next", results.EdgeView)


def node(run_id: str, name: str) -> Call[dict[str, Any]]:
    """Return one node of a run's runbook with its checks and exits."""
    return _get(f"{_run(run_id)}/nodes/{_part(name)}", dict[str, Any])


def history(run_id: str, *, after: int | None = None, limit: int | None = None) -> Call[results.HistoryView]:
    """Return the history of a run, oldest first.

    Args:
        run_id: the run.
        after: only what began after the event of this number; ``limit`` then means the first entries.
        limit: how many; without ``after`` the last ones.
    """
    return _get(f"{_run(run_id)}/history", results.HistoryView, _numbers(after=after, limit=limit))


def evidence(run_id: str) -> Call[tuple[dict[str, Any], ...]]:
    """Return what stood behind each transition of a run."""
    return _list(f"{_run(run_id)}/evidence", dict[str, Any])


def prompt(run_id: str) -> Call[str]:
    """Return the prompt that brings an agent back to a run."""
    return _text(f"{_run(run_id)}/prompt", "prompt")


def compact_prompt(run_id: str) -> Call[str]:
    """Return the instruction by which a conversation is compacted without losing the run."""
    return _text(f"{_run(run_id)}/compact-prompt", "prompt")


def questions(run_id: str, target: str) -> Call[tuple[results.QuestionView, ...]]:
    """Return what a ``goto`` to a target would ask somebody to confirm."""
    return _list(f"{_run(run_id)}/questions", results.QuestionView, _query(target=target))


def event_page(run_id: str, *, after: int = 0, limit: int = PAGE) -> Call[EventPage]:
    """Return events of a run after a number, oldest first, each as JSON."""
    return _get(f"{_run(run_id)}/events", EventPage, _numbers(after=after, limit=limit))


class EventPage(Struct, frozen=True):
    """Events of a run as they came; ``version`` is the number of its last one."""

    items: tuple[msgspec.Raw, ...]
    next_after: int
    version: int


# --- moving ----------------------------------------------------------------------------------------------------------


def goto(
    run_id: str,
    target: str,
    *,
    confirm: Confirm = False,
    decline: Mapping[str, str] | None = None,
    on_manual: OnManual = "fail",
    from_entry: str | None = None,
    by: Actor = NOBODY_ELSE,
    if_version: int | None = None,
    wait: float = 0.0,
    key: str = "",
) -> Steps[results.TransitionView]:
    """Attempt a checked transition. That it is blocked is an outcome and no error.

    Args:
        run_id: the run.
        target: the node to move to.
        confirm: what is confirmed in advance.
        decline: checks that are declined, by id, name or text, each with the reason.
        on_manual: what a check does that nobody confirmed: fail, or wait for a decision.
        from_entry: the entry that the caller has seen; if the run has moved on, nothing is done.
        by: the agent that the caller speaks for.
        if_version: the only version of the run that this is meant for.
        wait: seconds to wait for the outcome. It ends early where only people's decisions are left to wait for.
        key: an idempotency key of the caller's own.

    Raises:
        UnknownTarget: there is no such edge.
        TransitionInFlight: another transition is open.
        StaleVersion: the run is not at ``if_version``.
    """
    deadline = Deadline(wait)
    opened = yield goto_call(
        run_id,
        target,
        confirm=confirm,
        decline=decline,
        on_manual=on_manual,
        from_entry=from_entry,
        by=by,
        if_version=if_version,
        wait=deadline.bound(POLL_SECONDS),
        key=key,
    )
    return (yield from seen_through(opened, deadline))


def goto_call(
    run_id: str,
    target: str,
    *,
    confirm: Confirm = False,
    decline: Mapping[str, str] | None = None,
    on_manual: OnManual = "fail",
    from_entry: str | None = None,
    by: Actor = NOBODY_ELSE,
    if_version: int | None = None,
    wait: float = 0.0,
    key: str = "",
) -> Call[results.TransitionView]:
    """Return the one request that attempts a transition. See ``goto``."""
    body = {
        "target": target,
        "on_manual": on_manual,
        "confirm": confirm if isinstance(confirm, bool) else list(confirm),
        "decline": dict(decline or {}),
        **({} if from_entry is None else {"from_entry": from_entry}),
        **_speaker(by),
    }
    return _post(f"{_run(run_id)}/goto", body, results.TransitionView, wait=wait, key=key, if_version=if_version)


def save(
    run_id: str,
    *,
    confirm: bool = False,
    skip_hooks: bool = False,
    by: Actor = NOBODY_ELSE,
    if_version: int | None = None,
    wait: float = 0.0,
    key: str = "",
) -> Steps[results.TransitionView]:
    """Run the current node's ``out_hook`` without moving."""
    deadline = Deadline(wait)
    opened = yield save_call(
        run_id,
        confirm=confirm,
        skip_hooks=skip_hooks,
        by=by,
        if_version=if_version,
        wait=deadline.bound(POLL_SECONDS),
        key=key,
    )
    return (yield from seen_through(opened, deadline))


def save_call(
    run_id: str,
    *,
    confirm: bool = False,
    skip_hooks: bool = False,
    by: Actor = NOBODY_ELSE,
    if_version: int | None = None,
    wait: float = 0.0,
    key: str = "",
) -> Call[results.TransitionView]:
    """Return the one request that saves a run. See ``save``."""
    body = {"confirm": confirm, "skip_hooks": skip_hooks, **_speaker(by)}
    return _post(f"{_run(run_id)}/save", body, results.TransitionView, wait=wait, key=key, if_version=if_version)


def rebind(
    run_id: str,
    *,
    runbook: str | None = None,
    text: str | None = None,
    source: str = "runbook.yaml",
    format: Format = "yaml",
    confirm: bool = False,
    by: Actor = NOBODY_ELSE,
    if_version: int | None = None,
    wait: float = 0.0,
) -> Steps[results.TransitionView]:
    """Bind a run to another version of its runbook, and run the ``in_hook`` of its node again."""
    named = {} if runbook is None else {"runbook": runbook}
    body = {**named, **_runbook_body(text, source, format), "confirm": confirm, **_speaker(by)}
    deadline = Deadline(wait)
    opened = yield _post(
        f"{_run(run_id)}/rebind",
        body,
        results.TransitionView,
        wait=deadline.bound(POLL_SECONDS),
        if_version=if_version,
    )
    return (yield from seen_through(opened, deadline))


def transition(run_id: str, transition: str, *, wait: float = 0.0) -> Call[results.TransitionView]:
    """Return what has come of a transition; with ``wait`` (30 s at most count) once it has settled or time is up."""
    path, seconds = _transition(run_id, transition), min(wait, POLL_SECONDS)
    return _get(path, results.TransitionView, _wait(seconds), wait=seconds)


def transition_document(run_id: str, transition: str) -> Call[Transition]:
    """Return a transition with all that is stored of it, for programs of the same version."""
    return _get(f"{_transition(run_id, transition)}/document", Transition)


def wait(run_id: str, transition: str, seconds: float) -> Steps[results.TransitionView]:
    """Wait until a transition has settled, only people's decisions are left to wait for, or time is up."""
    deadline = Deadline(seconds)
    seen = yield _get(
        _transition(run_id, transition),
        results.TransitionView,
        _wait(deadline.bound(POLL_SECONDS)),
        wait=deadline.bound(POLL_SECONDS),
    )
    return (yield from seen_through(seen, deadline))


def seen_through(seen: results.TransitionView, deadline: Deadline) -> Steps[results.TransitionView]:
    """Wait on for a transition that was seen already. See ``wait``."""
    while seen.pending and not seen.waits_for_people and not deadline.passed:
        seen = yield transition(seen.run_id, seen.transition, wait=deadline.bound(POLL_SECONDS))
    return seen


def cancel_transition(
    run_id: str, transition: str, *, reason: str = "", if_version: int | None = None
) -> Call[results.TransitionView]:
    """End an open transition; the run stays on its node."""
    path = f"{_transition(run_id, transition)}/cancel"
    return _post(path, {"reason": reason}, results.TransitionView, if_version=if_version)


def check_log(run_id: str, transition: str, check: str) -> Call[str]:
    """Return the longer output of a check, which is kept for a week."""
    return _text(f"{_transition(run_id, transition)}/checks/{_part(check)}/log", "text")


# --- deciding --------------------------------------------------------------------------------------------------------


def approvals() -> Call[tuple[results.DecisionView, ...]]:
    """Return what waits for somebody's decision, in the runs that the caller reaches."""
    return _list("/v1/approvals", results.DecisionView)


def decide(
    decision: str,
    *,
    approved: bool,
    comment: str = "",
    as_agent: str | None = None,
    if_version: int | None = None,
    wait: float = 0.0,
) -> Steps[results.TransitionView]:
    """Approve or reject a check that waits for a decision; the transition goes on. The first decision wins.

    Args:
        decision: its id, as ``approvals`` gives it.
        approved: what is decided.
        comment: kept with it.
        as_agent: the agent that decides. It settles nothing that is for an operator.
        if_version: the only version of the run that this is meant for.
        wait: seconds to wait for what comes of it.

    Raises:
        Conflict: somebody else has decided otherwise, or nothing waits for it any more.
    """
    deadline = Deadline(wait)
    after = yield decide_call(
        decision,
        approved=approved,
        comment=comment,
        as_agent=as_agent,
        if_version=if_version,
        wait=deadline.bound(POLL_SECONDS),
    )
    return (yield from seen_through(after, deadline))


def decide_call(
    decision: str,
    *,
    approved: bool,
    comment: str = "",
    as_agent: str | None = None,
    if_version: int | None = None,
    wait: float = 0.0,
) -> Call[results.TransitionView]:
    """Return the one request that decides. See ``decide``.

    Raises:
        Invalid: the id is none of a decision.
    """
    run_id, transition_id, check = _decision(decision)
    path = f"{_transition(run_id, transition_id)}/decisions/{_part(check)}"
    body = {"approved": approved, "comment": comment} | ({} if as_agent is None else {"as_agent": as_agent})
    return _post(path, body, results.TransitionView, wait=wait, if_version=if_version)


def approve(decision: str, *, comment: str = "", wait: float = 0.0) -> Steps[results.TransitionView]:
    """Approve a check. See ``decide``."""
    return decide(decision, approved=True, comment=comment, wait=wait)


def reject(decision: str, *, comment: str = "", wait: float = 0.0) -> Steps[results.TransitionView]:
    """Reject a check. See ``decide``."""
    return decide(decision, approved=False, comment=comment, wait=wait)


# --- holding and ending ----------------------------------------------------------------------------------------------


def recover(
    run_id: str,
    *,
    way: WayOut,
    reason: str = "",
    check: str | None = None,
    transition: str | None = None,
    if_version: int | None = None,
    wait: float = 0.0,
) -> Steps[results.TransitionView]:
    """Take a transition out of an unknown outcome: execute again, give up, or say what came of it.

    Args:
        run_id: the run.
        way: ``resume``, ``abort``, ``passed`` or ``failed``.
        reason: why; the last two need one.
        check: the check that is meant, where several are of unknown outcome.
        transition: the transition that is meant, if it is no other meanwhile.
        if_version: the only version of the run that this is meant for.
        wait: seconds to wait for what comes of it.

    Raises:
        Conflict: nothing of the run is of unknown outcome.
    """
    deadline = Deadline(wait)
    after = yield recover_call(
        run_id,
        way=way,
        reason=reason,
        check=check,
        transition=transition,
        if_version=if_version,
        wait=deadline.bound(POLL_SECONDS),
    )
    return (yield from seen_through(after, deadline))


def recover_call(
    run_id: str,
    *,
    way: WayOut,
    reason: str = "",
    check: str | None = None,
    transition: str | None = None,
    if_version: int | None = None,
    wait: float = 0.0,
) -> Call[results.TransitionView]:
    """Return the one request that recovers. See ``recover``."""
    meant = {"check": check, "transition": transition}
    body = {"way": way, "reason": reason} | {name: value for name, value in meant.items() if value is not None}
    return _post(f"{_run(run_id)}/recover", body, results.TransitionView, wait=wait, if_version=if_version)


def cancel(run_id: str, *, reason: str = "", if_version: int | None = None) -> Call[results.RunView]:
    """End a run for good; what is being executed may end first."""
    return _post(f"{_run(run_id)}/cancel", {"reason": reason}, results.RunView, if_version=if_version)


def terminate(run_id: str, *, reason: str = "", if_version: int | None = None) -> Call[results.RunView]:
    """End a run for good and at once; what is being executed is ended."""
    return _post(f"{_run(run_id)}/terminate", {"reason": reason}, results.RunView, if_version=if_version)


def pause(run_id: str, *, reason: str = "", if_version: int | None = None) -> Call[results.RunView]:
    """Hold a run where it is until it is resumed."""
    return _post(f"{_run(run_id)}/pause", {"reason": reason}, results.RunView, if_version=if_version)


def resume(run_id: str, *, if_version: int | None = None) -> Call[results.RunView]:
    """Let a paused run go on."""
    return _post(f"{_run(run_id)}/resume", None, results.RunView, if_version=if_version)


# --- dynamic checks --------------------------------------------------------------------------------------------------


def dynamic(run_id: str) -> Call[tuple[results.DynamicView, ...]]:
    """Return who has registered checks for the current entry, and which."""
    return _list(f"{_run(run_id)}/dynamic", results.DynamicView)


def write_dynamic(
    run_id: str,
    checks: Sequence[Mapping[str, Any]] | str,
    *,
    basis: Mapping[str, Any] | None = None,
    source: str = "checks",
    format: Format = "json",
    unused: bool = False,
    by: Actor = NOBODY_ELSE,
) -> Call[results.DynamicView]:
    """Register checks for the current entry, in place of those that this agent has registered before.

    Args:
        run_id: the run.
        checks: the checks, or a text that holds them.
        basis: what they are based on, where the node wants to know; a text holds that itself.
        source: what messages call the text.
        format: its language.
        unused: register them also where the node accepts none, so that nothing runs them.
        by: the agent that the caller speaks for.
    """
    given: dict[str, Any] = {"text": checks, "source": source, "format": format}
    if not isinstance(checks, str):
        given = {"checks": list(checks)} | ({} if basis is None else {"basis": dict(basis)})
    body = {**given, **({"unused": True} if unused else {}), **_speaker(by)}

    def first(reply: Reply) -> results.DynamicView:
        return msgspec.json.decode(reply.body, type=results.Page[results.DynamicView]).items[0]

    return Call("PUT", f"{_run(run_id)}/dynamic", first, body=msgspec.json.encode(body))


# --- live ------------------------------------------------------------------------------------------------------------


def events(run_id: str, *, after: int = 0) -> Listening[results.EventView]:
    """Go through the events of a run after a number, and those to come, until it has ended. A lost connection is made
    anew and goes on where it was lost."""
    return Listening(f"{_run(run_id)}/events", (), event_of, str(after) if after else None)


def raw_events(run_id: str, *, after: int = 0) -> Listening[bytes]:
    """Go through the same as they come, each as JSON."""
    return Listening(f"{_run(run_id)}/events", (), lambda frame: frame.data.encode(), str(after) if after else None)


def feed(*, labels: Mapping[str, str] | None = None, position: str | None = None) -> Listening[results.CommitView]:
    """Go through the commits of all runs with these labels, from now on or from a position; it has no end.

    Who was away for too long is told so by a commit that is a ``gap``.
    """

    def commit_of(frame: Frame) -> results.CommitView:
        if frame.event == "gap":
            return results.CommitView(position=frame.id or "", gap=True)
        told = msgspec.json.decode(frame.data, type=_Commit)
        return results.CommitView(
            position=frame.id or "",
            run_id=told.run_id,
            labels=told.labels,
            events=tuple(map(_event_view, told.events)),
        )

    return Listening("/v1/events", _labels(labels), commit_of, position)


class _Commit(Struct, frozen=True):
    run_id: str
    labels: dict[str, str]
    events: tuple[dict[str, Any], ...]


def event_of(frame: Frame) -> results.EventView:
    """Return the event that a frame of a run's stream holds."""
    return _event_view(msgspec.json.decode(frame.data, type=dict[str, Any]))


def _event_view(told: dict[str, Any]) -> results.EventView:
    fields = {name: value for name, value in told.items() if name not in ("number", "ts", "event")}
    return results.EventView(number=told["number"], ts=told["ts"], event=told["event"], fields=fields)


# --- tokens and the service itself -----------------------------------------------------------------------------------


def create_token(
    role: Role, *, name: str = "", labels: Mapping[str, str] | None = None, expires_in: float | None = None
) -> Call[results.NewToken]:
    """Make a token; this is the only time that anybody sees its text. ``expires_in`` is in seconds.

    Raises:
        Conflict: an earlier try of this call has made it, and its text was lost on the way: revoke it.
    """
    body = {"role": role, "name": name, "labels": dict(labels or {})}
    return _post("/v1/tokens", body | ({} if expires_in is None else {"expires_in": expires_in}), results.NewToken)


def tokens() -> Call[tuple[results.TokenView, ...]]:
    """Return the tokens, newest first."""
    return _list("/v1/tokens", results.TokenView)


def revoke_token(token_id: str) -> Call[results.TokenView]:
    """End a token at once."""
    return Call("DELETE", f"/v1/tokens/{_part(token_id)}", _as(results.TokenView))


def whoami() -> Call[results.Me]:
    """Return who is calling."""
    return _get("/v1/whoami", results.Me)


def clock() -> Call[int]:
    """Return the time of the service in ms since the epoch, to the second."""
    return Call("GET", "/healthz", _date)


def readiness() -> Call[results.Readiness]:
    """Return whether the service can do its work; that it cannot is an answer as well."""
    return Call("GET", "/readyz", _as(results.Readiness), expected=frozenset({503}))


# --- how calls are put together --------------------------------------------------------------------------------------


def _get(path: str, kind: type[T], query: tuple[tuple[str, str], ...] = (), *, wait: float = 0.0) -> Call[T]:
    return Call("GET", path, _as(kind), query, wait=wait)


def _list(path: str, kind: type[T], query: tuple[tuple[str, str], ...] = ()) -> Call[tuple[T, ...]]:
    def items(reply: Reply) -> tuple[T, ...]:
        found: results.Page[T] = msgspec.json.decode(reply.body, type=results.Page[kind])  # type: ignore[valid-type]
        return found.items

    return Call("GET", path, items, query)


def _text(path: str, member: str) -> Call[str]:
    return Call("GET", path, lambda reply: str(msgspec.json.decode(reply.body)[member]))


def _post(
    path: str,
    body: Mapping[str, Any] | None,
    kind: type[T],
    *,
    wait: float = 0.0,
    key: str = "",
    if_version: int | None = None,
) -> Call[T]:
    return Call(
        "POST",
        path,
        _as(kind),
        _wait(wait),
        body=None if body is None else msgspec.json.encode(body),
        headers={} if if_version is None else {"If-Match": f'"{if_version}"'},
        wait=wait,
        key=key,
    )


def _date(reply: Reply) -> int:
    from email.utils import parsedate_to_datetime

    try:
        return round(parsedate_to_datetime(reply.headers.get("date", "")).timestamp() * 1000)
    except ValueError:
        # Not every proxy leaves it in; the clocks of hosts differ by less than what is told from this.
        return round(time.time() * 1000)


def _as(kind: type[T]) -> Callable[[Reply], T]:
    return lambda reply: msgspec.json.decode(reply.body, type=kind)


def _run(run_id: str) -> str:
    return f"/v1/runs/{_part(run_id)}"


def _transition(run_id: str, transition: str) -> str:
    return f"{_run(run_id)}/transitions/{_part(transition)}"


def _part(text: str) -> str:
    """Return one part of a path; whatever stands in it leads nowhere else."""
    if text in ("", ".", ".."):
        raise Invalid(f"{text!r} names nothing.")
    return quote(text, safe="")


def _decision(decision: str) -> tuple[str, str, str]:
    parts = decision.split("/")
    if len(parts) != 3:
        raise Invalid(
            f"{decision!r} is no id of a decision.", hint="It is RUN/TRANSITION/CHECK, as `approvals` has it."
        )
    return parts[0], parts[1], parts[2]


def _query(**given: str | None) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in given.items() if value is not None)


def _numbers(**given: int | None) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in given.items() if value is not None)


def _labels(labels: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(("label", f"{key}={value}") for key, value in (labels or {}).items())


def _wait(seconds: float) -> tuple[tuple[str, str], ...]:
    return (("wait", f"{seconds:.3f}"),) if seconds else ()


def _speaker(by: Actor) -> dict[str, str]:
    if by.id:
        # An agent without a role has not that of the token.
        return {"agent_id": by.id, "agent_role": by.role}
    return {"agent_role": by.role} if by.role else {}


def _runbook_body(text: str | None, source: str, format: Format) -> dict[str, str]:
    return {} if text is None else {"text": text, "source": source, "format": format}
