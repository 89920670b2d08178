"""Shell commands as checks and hooks: run one, and say in the closed list of reasons how it ended.

Exit status 0 passes. 126 and 127 are the shell's words for a program that cannot be executed or found, which is a
mistake of the runbook or the machine and no verdict on the work. A status that the runbook's ``retry.exit_status``
lists means "could not be evaluated". A command whose supervisor died is ``worker_lost``, not ``spawn_failed``:
nobody knows what it had done by then, and a hook must not be repeated on that ground.
"""

from __future__ import annotations

import os
import shlex
import signal

from msgspec import structs

from statem_dist.checks.confinement import Rules, Unconfinable, UnfitHost, begun
from statem_dist.checks.context import CheckContext
from statem_dist.checks.output import shorten, shown_text
from statem_dist.checks.process import SHUTDOWN, Finished, Supervisor
from statem_dist.checks.redaction import blotted, secrets_of
from statem_dist.protocol.graph import Check, Command
from statem_dist.protocol.outcome import Outcome, Reason

OUT_OF_CPU = 128 + signal.SIGXCPU
"""Exit status of ``/bin/sh`` when what it ran was ended by the limit of processor time."""

CANNOT_EXECUTE = frozenset({126, 127})
"""Exit statuses of ``/bin/sh`` for a program that is not executable, or that is not there."""


def evaluate_command(check: Check, command: Command, context: CheckContext, supervisor: Supervisor) -> Outcome:
    """Run a command and return its outcome."""
    finished = execute(_for_sh(command), check, context, supervisor, context.rules)
    reason, note = judge(finished, check, context)
    return outcome_of(finished, reason, note, context)


def _for_sh(command: Command) -> str:
    """Return what ``/bin/sh`` is to execute for a command."""
    return command.run if command.shell == "sh" else f"exec bash -o pipefail -c {shlex.quote(command.run)}"


def execute(
    run: str, check: Check, context: CheckContext, supervisor: Supervisor, rules: Rules, stdin: bytes | None = None
) -> Finished:
    """Run a shell command where, with what and for as long as a check says, within the rules.

    Returns:
        How it ended. A command that the rules do not let begin is a ``Finished`` with a ``failure``.
    """
    directory = context.directory(check)
    try:
        invocation = rules.invocation(context.workspace, directory, context.environ)
    except (Unconfinable, ValueError) as error:
        return Finished(failure="unfit" if isinstance(error, UnfitHost) else "refused", text=str(error))
    finished = supervisor.run(
        context.key,
        run,
        cwd=invocation.cwd,
        env=invocation.env,
        stdin=stdin,
        timeout=check.timeout,
        limits=invocation.limits,
        wrapper=invocation.wrapper,
        again=context.repeatable,
    )
    ended = finished if invocation.wrapper is None else begun(finished, rules)
    return structs.replace(ended, secrets=secrets_of(context.environ, os.environ))


def judge(finished: Finished, check: Check, context: CheckContext) -> tuple[Reason, str]:
    """Return why a command ended as it did, and a sentence on it where its own output says nothing."""
    cpu = context.rules.limits.cpu
    if finished.cancelled is not None:
        return reason_of_cancellation(finished.cancelled), f"ended early: {finished.cancelled}"
    if finished.timed_out:
        return "timed_out", f"timed out after {check.timeout:g} s"
    match finished.failure:
        case "cwd_missing":
            return "config_error", _missing_directory(check, context, finished.text)
        case "spawn_failed":
            return "spawn_failed", finished.text
        case "unfit":
            # It says nothing of the work, and another worker may be fit for it.
            return "spawn_failed", f"the command cannot be run here: {finished.text}"
        case "refused":
            return "config_error", f"the command cannot be run: {finished.text}"
        case "supervisor_lost":
            return "worker_lost", finished.text
    if finished.signal is not None:
        note = f"ended by signal {finished.signal} ({_signal_name(finished.signal)})"
        limit = cpu if finished.signal == signal.SIGXCPU and cpu is not None else None
        return "signal", note if limit is None else f"{note}: its limit of processor time, {limit} s"
    if finished.exit_code is None:
        return "worker_lost", "the command could not be ended; it may still be running"
    if finished.exit_code == 0:
        return "passed", ""
    if finished.exit_code in check.retry.exit_status:
        return "spawn_failed", f"exit status {finished.exit_code} is declared as could-not-run (retry.exit_status)"
    if finished.exit_code in CANNOT_EXECUTE:
        return "config_error", ""
    if finished.exit_code == OUT_OF_CPU and cpu is not None:
        note = f"exit status {OUT_OF_CPU} is a shell's word for SIGXCPU, which ends what exceeds"
        return "check_failed", f"{note} the limit of processor time ({cpu} s)"
    return "check_failed", ""


def reason_of_cancellation(why: str) -> Reason:
    """Return the reason that the ``why`` of a cancellation stands for."""
    return "shutdown" if why == SHUTDOWN else "cancelled"


def outcome_of(finished: Finished, reason: Reason, note: str, context: CheckContext) -> Outcome:
    """Return the outcome of a command: the note first, then what it wrote, the whole of it in the log if need be."""
    text = shown_text(finished)
    bytes_max = context.limits.output_bytes_max
    note = shorten(blotted(note, finished.secrets), bytes_max // 2)
    room = bytes_max - len(note.encode()) - 1
    output = shorten(text, room, finished.dropped_bytes)
    outcome = Outcome(
        passed=reason == "passed",
        reason=reason,
        output="\n".join(part for part in (note, output) if part),
        exit_code=finished.exit_code,
        signal=finished.signal,
        duration_ms=finished.duration_ms,
        output_bytes=finished.written_bytes,
        dropped_bytes=finished.dropped_bytes,
        survivors=finished.survivors,
        begun=finished.begun,
    )
    return outcome if output == text else structs.replace(outcome, log=text)


def _missing_directory(check: Check, context: CheckContext, text: str) -> str:
    directory = context.directory(check)
    origin = f"cwd {check.cwd!r} of the check" if check.cwd else "workspace of the run"
    if os.path.isdir(directory):
        return f"{text} (the {origin}): give this user the right to enter it"
    return f"{text} (the {origin}): create this folder, or correct the {'cwd' if check.cwd else 'workspace'}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"
