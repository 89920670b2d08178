"""What a runbook keeps its commands within (``limits``, ``sandbox``, ``executor``), to ``graph.Confinement``."""

from __future__ import annotations

import re

from statem_dist.limits import NAMES, limit_value
from statem_dist.protocol.graph import UNCONFINED, Confinement, ResourceLimits, Sandbox
from statem_dist.runbook.fields import Fields
from statem_dist.runbook.problems import Problems, Suggestion
from statem_dist.runbook.tree import Mapping, Scalar, is_null

CONFINEMENT_KEYWORDS = ("limits", "sandbox", "executor")
LIMIT_KEYWORDS = NAMES
SANDBOX_KEYWORDS = ("bwrap",)
BWRAP_KEYWORDS = ("network",)
EXECUTOR_KEYWORDS = ("docker",)

CONTAINER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""What Docker accepts as the name or the id of a container."""


def read_confinement(root: Fields, problems: Problems) -> Confinement:
    """Return what the root of a runbook says of it."""
    limits = _limits(root, problems)
    sandbox = _sandbox(root, problems)
    executor = _executor(root, problems)
    if executor and sandbox is not None:
        root.refuse("executor", "give either sandbox or executor: a container is not within the sandbox")
    confinement = Confinement(limits=limits, sandbox=sandbox, executor=executor)
    # The same value where nothing is said, so that stored documents leave it out.
    return UNCONFINED if confinement == UNCONFINED else confinement


def _limits(root: Fields, problems: Problems) -> ResourceLimits:
    inner = _inner(root, "limits", LIMIT_KEYWORDS, problems, "{memory: 2G, cpu: 600, processes: 256, files: 1024}")
    found: dict[str, int] = {}
    for name in LIMIT_KEYWORDS if inner is not None else ():
        assert inner is not None
        value = inner.get(name)
        if value is None:
            continue
        words = value.words if isinstance(value, Scalar) else None
        try:
            found[name] = limit_value(name, words or "")
        except ValueError as error:
            inner.refuse(name, str(error))
    return ResourceLimits(**found)


def _sandbox(root: Fields, problems: Problems) -> Sandbox | None:
    value = root.get("sandbox")
    if value is None:
        return None
    if isinstance(value, Scalar):
        if value.words == "bwrap":
            return Sandbox()
        near = Suggestion(value.words or "", SANDBOX_KEYWORDS)
        root.refuse("sandbox", f"must be bwrap, not '{value.words}'", near=near)
        return None
    inner = _inner(root, "sandbox", SANDBOX_KEYWORDS, problems, "bwrap")
    if inner is None:
        return None
    if not inner.present("bwrap"):
        inner.wrong("a sandbox requires bwrap", hint="write 'sandbox: bwrap'")
        return None
    if is_null(inner.mapping.entries["bwrap"]):
        return Sandbox()
    options = _inner(inner, "bwrap", BWRAP_KEYWORDS, problems, "{network: true}")
    return Sandbox(network=bool(options and options.flag("network")))


def _executor(root: Fields, problems: Problems) -> str:
    inner = _inner(root, "executor", EXECUTOR_KEYWORDS, problems, "{docker: NAME}")
    if inner is None:
        return ""
    name = inner.name("docker")
    if name is None:
        if inner.get("docker") is None:
            inner.wrong("an executor requires docker, the name of a running container")
        return ""
    if not CONTAINER_NAME.fullmatch(name):
        inner.refuse("docker", f"'{name}' is no name of a container", hint="use letters, digits, '_', '.' and '-'")
        return ""
    return f"docker:{name}"


def _inner(fields: Fields, key: str, keywords: tuple[str, ...], problems: Problems, example: str) -> Fields | None:
    """Return the keywords of a mapping within another; None when there is none, noted if it should be one."""
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        fields.refuse(key, "must be a mapping", hint=f"such as {key}: {example}")
        return None
    for word, at in value.key_at.items():
        if word not in keywords:
            # An error in either mode: a limit that is passed over because of its spelling would protect nobody.
            problems.error(at, fields.path(key), f"unknown keyword '{word}'", near=Suggestion(word, keywords))
    return Fields(value, fields.path(key), problems)
