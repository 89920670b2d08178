"""Lists of checks, in every form that StateM accepts, to ``graph.Steps``.

A list of checks is a sentence, a mapping, or a list that mixes them. A sentence is a manual check wherever it
stands. A mapping without a type gets one from its keywords: ``run`` makes a command, ``path`` a predicate,
``items`` a checklist; anything else is a manual check where it guards a transition and a message in a hook.
A message inferred in a hook does not block; one that says ``type: message`` blocks like any check.
A command in a hook before the commit may say how it is undone (``repair``): by commands of the same forms.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, TypeAlias, cast, get_args

from msgspec import UNSET

from statem_dist.protocol.graph import (
    CHECK_TYPES,
    Check,
    Checklist,
    Command,
    DecidedBy,
    LlmReview,
    Manual,
    Message,
    OnFailure,
    Predicate,
    Retry,
    RetryOn,
    Shell,
    Steps,
    Work,
)
from statem_dist.runbook.fields import Fields
from statem_dist.runbook.problems import Problems, Suggestion
from statem_dist.runbook.tree import Mapping, Scalar, Sequence, Value, is_null, plain

Untyped: TypeAlias = Literal["manual", "message"]
"""What a mapping becomes whose keywords say nothing about its type."""

ATTEMPTS_MAX = 100
"""Upper bound of ``maximum_attempts``: beyond it a retry is a loop, and loops belong into the graph."""

_COMMAND_KEYS = ("run", "command", "cmd")
_ITEM_KEYS = ("items", "checks")
_TEXT_KEYS = ("text", "prompt", "message", "name")
_COMMON = (
    *("type", "name", "blocking", "on_failure", "timeout", "cwd", "reason"),
    *("idempotent", "retries", "retry"),
)
_PREDICATE_KEYS = (
    *("path", "exists", "non_empty", "contains", "not_contains", "matches"),
    *("json_path", "equals", "one_of"),
)
_REVIEW_KEYS = ("stdin", "accept_contains", "accept_regex", "reject_contains", "reject_regex")

KEYWORDS: dict[str, frozenset[str]] = {
    "manual": frozenset({*_COMMON, *_TEXT_KEYS, "confirmation", "by"}),
    "checklist": frozenset({*_COMMON, *_TEXT_KEYS, *_ITEM_KEYS, "confirmation", "by"}),
    "command": frozenset({*_COMMON, *_COMMAND_KEYS, "shell"}),
    "predicate": frozenset({*_COMMON, *_PREDICATE_KEYS}),
    "llm_review": frozenset({*_COMMON, *_COMMAND_KEYS, "prompt", "text", *_REVIEW_KEYS}),
    "message": frozenset({*_COMMON, *_TEXT_KEYS}),
}
"""The keywords of each check type."""

_ALL_KEYWORDS = frozenset().union(*KEYWORDS.values())
_RETRY_KEYWORDS = frozenset(Retry.__struct_fields__)
_RETRY_ON: tuple[RetryOn, ...] = ("infrastructure", "failed", "timed_out")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
_PIPE = re.compile(r"(?<![|>])\|(?!\|)")


class CheckReader:
    """Reads checks and notes what is wrong with them.

    Args:
        problems: where problems go.
        allow_types: the check types that may be used; None allows all.
        require_reason: whether every check has to say why it is there.
    """

    def __init__(
        self, problems: Problems, *, allow_types: Collection[str] | None = None, require_reason: bool = False
    ) -> None:
        self._problems = problems
        self._allow_types = allow_types
        self._require_reason = require_reason

    def steps(self, value: Value | None, where: str, untyped: Untyped, *, repairable: bool = False) -> Steps:
        """Return the steps of a list of checks in any form; nothing and null are an empty list.

        Args:
            value: the list.
            where: the path of it.
            untyped: see ``Untyped``.
            repairable: whether its commands may say how they are undone.
        """
        if value is None or is_null(value):
            return ()
        if isinstance(value, Sequence):
            items = enumerate(value.items)
            found = [self._step(item, f"{where}[{number}]", untyped, repairable) for number, item in items]
        else:
            found = [self._step(value, where, untyped, repairable)]
        return tuple(step for step in found if step)

    def _step(self, value: Value, where: str, untyped: Untyped, repairable: bool) -> tuple[Check, ...]:
        if not isinstance(value, Mapping) or "parallel" not in value.entries:
            check = self._check(value, where, untyped, repairable)
            return (check,) if check else ()
        fields = Fields(value, where, self._problems)
        fields.only(("parallel",))
        members = value.entries["parallel"]
        if not isinstance(members, Sequence) or not members.items:
            fields.refuse("parallel", "must be a list of checks")
            return ()
        stem = fields.path("parallel")
        items = enumerate(members.items)
        checks = (self._check(item, f"{stem}[{number}]", untyped, repairable) for number, item in items)
        return tuple(check for check in checks if check)

    def _check(self, value: Value, where: str, untyped: Untyped, repairable: bool = False) -> Check | None:
        match value:
            case Scalar(data=str() as sentence) if sentence.strip():
                self._allow("manual", value.at, where)
                self._look_for_reason(None, value.at, where)
                return Check(Manual(sentence))
            case Mapping() if "parallel" not in value.entries:
                return self._typed(Fields(value, where, self._problems), untyped, repairable)
            case Mapping():
                message, hint = "parallel steps do not nest", "put the inner checks into the outer list"
            case Sequence():
                message, hint = "a list of checks holds no lists", "use 'parallel:' for checks that run side by side"
            case _:
                message, hint = "a check must be a sentence or a mapping", ""
        self._problems.error(value.at, where, message, hint=hint)
        return None

    def _typed(self, fields: Fields, untyped: Untyped, repairable: bool) -> Check | None:
        stated = fields.text("type")
        kind = _infer(fields, untyped) if stated is None else stated.strip()
        if kind not in KEYWORDS:
            fields.refuse(
                "type",
                f"unsupported type '{kind}'",
                hint=f"use one of {', '.join(CHECK_TYPES)}",
                near=Suggestion(kind, CHECK_TYPES),
            )
            return None
        self._allow(kind, fields.mapping.at, fields.label)
        reason = fields.text("reason")
        self._look_for_reason(reason, fields.mapping.at, fields.label)
        fields.only(
            KEYWORDS[kind] | {"repair"},
            hint_for=lambda key: f"a {kind} check does not take it" if key in _ALL_KEYWORDS else "",
        )
        if stated is None and not fields.mapping.entries.keys() & KEYWORDS[kind]:
            fields.wrong(f"{kind} requires text", hint="a sentence that contains ': ' must be quoted")
            return None
        shown_only = stated is None and kind == "message"
        blocking = fields.flag("blocking")
        if blocking is None:
            blocking = not shown_only
        on_failure = fields.choice("on_failure", ("block", "continue"), "block" if blocking else "continue")
        return Check(
            do=self._work(kind, fields),
            name=fields.text("name"),
            blocking=blocking,
            on_failure=cast(OnFailure, on_failure),
            timeout=fields.seconds("timeout"),
            cwd=fields.text("cwd"),
            retry=self._retry(fields),
            idempotent=fields.flag("idempotent"),
            confirm=not (kind in ("manual", "checklist") and _confirmation_is_none(fields)),
            by=cast(DecidedBy, fields.choice("by", ("anyone", "operator"), "anyone")),
            reason=reason,
            repair=self._repair(fields, kind, repairable),
        )

    def _repair(self, fields: Fields, kind: str, repairable: bool) -> tuple[Check, ...]:
        """Return the commands that undo a hook."""
        value = fields.get("repair")
        if not fields.present("repair"):
            return ()
        if not repairable:
            fields.refuse(
                "repair",
                "only an item of out_hook or of an edge's hook has a repair",
                hint="a check has no effect to undo, and an in_hook runs after the commit, which is never taken back",
            )
            return ()
        if kind != "command":
            fields.refuse("repair", f"a {kind} has nothing to undo", hint="give the repair to a command")
            return ()
        if value is None:
            return ()
        stem, found = fields.path("repair"), list[Check]()
        items = (
            [(item, f"{stem}[{number}]") for number, item in enumerate(value.items)]
            if isinstance(value, Sequence)
            else [(value, stem)]
        )
        for item, where in items:
            if isinstance(item, Mapping) and "parallel" in item.entries:
                self._problems.error(item.at, where, "repairs run one after another", hint="put them into the list")
            elif check := self._check(item, where, "message"):
                if not isinstance(check.do, Command):
                    self._problems.error(item.at, where, "a repair is a command", hint="write it as {run: ...}")
                elif check.idempotent is False:
                    message = "a repair may be executed more than once, so it cannot be 'idempotent: false'"
                    self._problems.error(item.at, where, message, hint="make it harmless to repeat")
                else:
                    found.append(check)
        return tuple(found)

    def _allow(self, kind: str, at: int, where: str) -> None:
        if self._allow_types is not None and kind not in self._allow_types:
            allowed = ", ".join(self._allow_types) or "none"
            self._problems.error(at, where, f"type '{kind}' is not allowed here", hint=f"allowed: {allowed}")

    def _look_for_reason(self, reason: str | None, at: int, where: str) -> None:
        if self._require_reason and not (reason or "").strip():
            self._problems.error(at, where, "every dynamic check of this node needs a reason")

    def _work(self, kind: str, fields: Fields) -> Work:
        match kind:
            case "command":
                run = fields.required_text("command requires run", *_COMMAND_KEYS)
                self._look_at_command(fields)
                return Command(run, shell=cast(Shell, fields.choice("shell", get_args(Shell), "sh")))
            case "predicate":
                return _predicate(fields)
            case "checklist":
                items = fields.texts(*_ITEM_KEYS)
                found = fields.first(*_ITEM_KEYS)
                if found is None or (isinstance(found[1], Sequence) and not found[1].items):
                    fields.wrong("checklist requires items")
                return Checklist(items, fields.text("text", "prompt", "message") or "")
            case "llm_review":
                self._look_at_command(fields)
                return _review(fields)
            case "message":
                return Message(fields.required_text("message requires text", *_TEXT_KEYS))
            case _:
                return Manual(fields.required_text("manual requires text", *_TEXT_KEYS))

    def _look_at_command(self, fields: Fields) -> None:
        """Warn of commands that are probably not what their author meant."""
        key, value = fields.first(*_COMMAND_KEYS) or ("", None)
        if not isinstance(value, Scalar):
            return
        if value.commented:
            self._problems.warning(
                value.at,
                fields.path(key),
                f"a comment ends this command; it runs as: {value.text}",
                hint="quote the command if the '#' belongs to it",
            )
        shell = fields.get("shell")
        if isinstance(shell, Scalar) and shell.words == "bash":
            return
        if "pipefail" not in value.text and _PIPE.search(_QUOTED.sub("", value.text)):
            self._problems.advice(
                value.at,
                fields.path(key),
                "only the last command of a pipe decides; a failure before it goes unnoticed",
                hint="write the output to a file first, or say 'shell: bash', which sets pipefail",
            )

    def _retry(self, fields: Fields) -> Retry:
        whole = "must be a whole number, 0 or more"
        retries = fields.integer("retries", whole, least=0, most=ATTEMPTS_MAX - 1)
        value = fields.get("retry")
        if value is None:
            return Retry() if retries is None else Retry(maximum_attempts=retries + 1)
        if fields.get("retries") is not None:
            fields.refuse("retries", "give either retries or retry, not both")
        if not isinstance(value, Mapping):
            fields.refuse("retry", "must be a mapping", hint="'retries: 2' is short for retry: {maximum_attempts: 3}")
            return Retry()
        inner = Fields(value, fields.path("retry"), self._problems)
        inner.only(_RETRY_KEYWORDS)
        default = Retry()
        attempts = inner.integer("maximum_attempts", "must be a positive integer", least=1, most=ATTEMPTS_MAX)
        return Retry(
            maximum_attempts=default.maximum_attempts if attempts is None else attempts,
            initial_interval=inner.seconds("initial_interval") or default.initial_interval,
            backoff_coefficient=inner.number("backoff_coefficient", default.backoff_coefficient, least=1, most=100),
            maximum_interval=inner.seconds("maximum_interval") or default.maximum_interval,
            jitter=inner.number("jitter", default.jitter, least=0, most=1),
            exit_status=_exit_statuses(inner),
            on=_retry_on(inner) or default.on,
        )


def _infer(fields: Fields, untyped: Untyped) -> str:
    if fields.first(*_COMMAND_KEYS):
        return "command"
    if fields.first("path"):
        return "predicate"
    if fields.first(*_ITEM_KEYS):
        return "checklist"
    return untyped


def _confirmation_is_none(fields: Fields) -> bool:
    """Return whether nobody is asked; ``none`` is text in YAML and null in StateM's own parser."""
    return fields.present("confirmation") and fields.choice("confirmation", ("none",), "none") == "none"


def _predicate(fields: Fields) -> Predicate:
    path = fields.required_text("predicate requires path", "path")
    choices = fields.get("one_of")
    if choices is not None and not (isinstance(choices, Sequence) and choices.items):
        fields.refuse("one_of", "must be a list of values")
        choices = None
    return Predicate(
        path=path,
        exists=fields.flag("exists"),
        non_empty=fields.flag("non_empty"),
        contains=fields.text("contains"),
        not_contains=fields.text("not_contains"),
        matches=fields.pattern("matches"),
        json_path=fields.text("json_path"),
        equals=plain(fields.mapping.entries["equals"]) if fields.present("equals") else UNSET,
        one_of=None if choices is None else tuple(plain(choices)),
    )


def _review(fields: Fields) -> LlmReview:
    stdin = fields.flag("stdin")
    run = fields.text(*_COMMAND_KEYS)
    return LlmReview(
        prompt=fields.required_text("llm_review requires prompt", "prompt", "text", "name"),
        run=run if run and run.strip() else None,
        stdin=True if stdin is None else stdin,
        accept_contains=fields.text("accept_contains"),
        accept_regex=fields.pattern("accept_regex"),
        reject_contains=fields.text("reject_contains"),
        reject_regex=fields.pattern("reject_regex"),
    )


def _exit_statuses(fields: Fields) -> tuple[int, ...]:
    value = fields.get("exit_status")
    if value is None:
        return ()
    statuses = plain(value)
    statuses = statuses if isinstance(statuses, list) else [statuses]
    if all(type(status) is int and 1 <= status <= 255 for status in statuses):
        return tuple(statuses)
    fields.refuse("exit_status", "must be exit statuses from 1 to 255")
    return ()


def _retry_on(fields: Fields) -> tuple[RetryOn, ...]:
    outcomes = fields.texts("on")
    if wrong := [outcome for outcome in outcomes if outcome not in _RETRY_ON]:
        fields.refuse("on", f"'{wrong[0]}' is not one of {', '.join(_RETRY_ON)}", near=Suggestion(wrong[0], _RETRY_ON))
    return cast("tuple[RetryOn, ...]", outcomes)
