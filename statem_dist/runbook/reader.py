"""From a file or a text to a validated runbook: the front door of this package.

Order of work: bytes (size, UTF-8), text (YAML or JSON, ``yaml_text`` and ``json_text``), tree (``tree``),
graph (``nodes`` and ``checks``). The first two stop at the first problem, because nothing behind it can be
trusted; the others report everything at once.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from statem_dist.protocol.graph import Check, Runbook
from statem_dist.runbook import tree
from statem_dist.runbook.checks import CheckReader, Untyped
from statem_dist.runbook.nodes import GraphReader
from statem_dist.runbook.problems import Problem, Problems

Format: TypeAlias = Literal["yaml", "json"]


class CheckList(Struct, frozen=True):
    """Validated checks that came on their own, and what is doubtful about them."""

    checks: tuple[Check, ...]
    warnings: tuple[Problem, ...]


class Parsed(Struct, frozen=True):
    """A validated runbook, what is doubtful about it, and the text that it was read from."""

    runbook: Runbook
    warnings: tuple[Problem, ...]
    text: str


def load(path: Path, *, strict: bool = False) -> Parsed:
    """Read and validate a runbook file; the suffix ``.json`` selects JSON, everything else is YAML.

    Args:
        path: the file. Messages name it as given here.
        strict: refuse unknown keywords, and report doubtful structure as warnings.

    Raises:
        RunbookInvalid: the file cannot be read or is no valid runbook.
    """
    source = str(path)
    return parse(read_text(path), source=source, format=format_of(source), strict=strict)


def parse(text: str, *, source: str, format: Format = "yaml", strict: bool = False) -> Parsed:
    """Validate a runbook given as text.

    Args:
        text: the runbook. The sha256 of its UTF-8 bytes is the identity of the result.
        source: what to call it in messages; the stem of its last part is the default name of the runbook.
        format: the language of the text.
        strict: refuse unknown keywords, and report doubtful structure as warnings.

    Raises:
        RunbookInvalid: the text is no valid runbook; the message and ``details["problems"]`` list every problem.
    """
    root, problems = _document(text, source, format)
    if root is None:
        raise problems.fatal(None, "the file is empty", hint="Spec must define at least one node")
    digest = sha256(text.encode()).hexdigest()
    runbook = GraphReader(problems).read(root, digest=digest, name=PurePath(source).stem or source)
    return Parsed(runbook, problems.settle(strict=strict), text)


def read_checks(
    text: str,
    *,
    source: str,
    format: Format = "json",
    default_type: Untyped = "manual",
    allow_types: Collection[str] | None = None,
    require_reason: bool = False,
    require_basis: bool = False,
) -> CheckList:
    """Validate checks that came on their own, such as an agent's dynamic checks.

    Args:
        text: a list of checks, or a mapping that holds one under ``checks``; its other keywords are the caller's.
        source: what to call the text in messages.
        format: the language of the text.
        default_type: what a check becomes whose keywords say nothing about its type.
        allow_types: the check types that may be used; None allows all.
        require_reason: whether every check has to say why it is there.
        require_basis: whether the mapping has to hold a ``basis`` with an ``implementation_summary``.

    Raises:
        RunbookInvalid: the text holds no checks, one of them is wrong or not allowed, or something required is
            missing; all of it is listed.
    """
    root, problems = _document(text, source, format)
    listed = root.entries.get("checks") if isinstance(root, tree.Mapping) else root
    if not isinstance(listed, tree.Sequence):
        at = None if listed is None else listed.at
        raise problems.fatal(at, "must be a list of checks, or a mapping with a list under 'checks'")
    if require_basis and not _has_basis(root):
        message = "dynamic checks of this node need a basis with an implementation_summary"
        problems.error(0, "basis", message, hint='{"basis": {"implementation_summary": "..."}, "checks": [...]}')
    reader = CheckReader(problems, allow_types=allow_types, require_reason=require_reason)
    steps = reader.steps(listed, "checks", default_type)
    warnings = problems.settle(strict=False)
    return CheckList(tuple(check for step in steps for check in step), warnings)


def read_plain(text: str, *, source: str, format: Format = "yaml") -> Any:
    """Return any YAML or JSON text as plain data, read by the same rules and limits as a runbook.

    Raises:
        RunbookInvalid: the text cannot be read, or gives a key twice.
    """
    root, problems = _document(text, source, format)
    problems.settle(strict=False)
    return None if root is None else tree.plain(root)


def read_text(path: Path) -> str:
    """Return the text of a file, never reading more than the size limit allows.

    Raises:
        RunbookInvalid: the file is missing, unreadable, no file, too large, or not UTF-8.
    """
    problems = Problems(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(tree.BYTES_MAX + 1)
    except FileNotFoundError:
        raise problems.fatal(None, "there is no such file") from None
    except IsADirectoryError:
        raise problems.fatal(None, "is a directory, not a file") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise problems.fatal(None, f"cannot be read: {why}") from None
    if len(data) > tree.BYTES_MAX:
        raise problems.fatal(None, _TOO_LARGE)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 text: byte 0x{data[error.start]:02x} on line {line}"
        raise problems.fatal(None, message, hint="save the file as UTF-8") from None


def format_of(source: str) -> Format:
    """Return the language that the suffix of a file name stands for."""
    return "json" if PurePath(source).suffix.lower() == ".json" else "yaml"


def _has_basis(root: tree.Value | None) -> bool:
    """Return whether a document says what its checks are based on."""
    basis = root.entries.get("basis") if isinstance(root, tree.Mapping) else None
    summary = basis.entries.get("implementation_summary") if isinstance(basis, tree.Mapping) else None
    return isinstance(summary, tree.Scalar) and isinstance(summary.data, str) and bool(summary.data.strip())


_TOO_LARGE = f"is larger than {tree.BYTES_MAX:,} bytes, the limit for a runbook"


def _document(text: str, source: str, format: Format) -> tuple[tree.Value | None, Problems]:
    body = text.removeprefix("\ufeff")
    problems = Problems(source, body)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise problems.fatal(None, f"is no valid text: {error.reason}") from None
    if size > tree.BYTES_MAX:
        raise problems.fatal(None, _TOO_LARGE)
    if format == "json":
        from statem_dist.runbook.json_text import read_json

        return read_json(body, problems), problems
    # Imported here: PyYAML costs more than all of this package, and most commands parse no runbook.
    from statem_dist.runbook.yaml_text import read_yaml

    return read_yaml(body, problems), problems
