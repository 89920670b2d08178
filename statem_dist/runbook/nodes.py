"""Nodes, edges and the root of a runbook, to ``graph.Runbook``.

Nodes are a mapping of names or a list; edges stand under their source node (``next``) or in the root's list
(``edges``), and both kinds add up, those of the nodes first. References are checked last, when every name is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast, get_args

from msgspec import Struct

from statem_dist.protocol.graph import (
    CHECK_TYPES,
    DynamicConfig,
    Edge,
    EndOutcome,
    EvidenceTier,
    Node,
    Runbook,
    StageOrder,
)
from statem_dist.protocol.outcome import TIERS
from statem_dist.runbook.checks import CheckReader
from statem_dist.runbook.confinement import CONFINEMENT_KEYWORDS, read_confinement
from statem_dist.runbook.fields import Fields
from statem_dist.runbook.problems import Problems, Suggestion
from statem_dist.runbook.tree import Mapping, Scalar, Sequence, Value, is_null

ROOT_KEYWORDS = ("name", "initial", "start", "nodes", "edges", "protocol", *CONFINEMENT_KEYWORDS)
NODE_KEYWORDS = (
    *("name", "prompt", "pre_request", "pre-request", "in_hook", "before_transfer", "dynamic_before_transfer"),
    *("out_hook", "next", "next_states", "outcome"),
)
_SOURCE_KEYS = ("from", "source", "node1")
_TARGET_KEYS = ("to", "target", "node2")
_NEXT_TARGET_KEYS = ("to", "target", "name")
_EDGE_BODY = ("condition", "hook", "max_attempts", "require_evidence")
EDGE_KEYWORDS = (*_SOURCE_KEYS, *_TARGET_KEYS, *_EDGE_BODY)
NEXT_KEYWORDS = (*_NEXT_TARGET_KEYS, *_EDGE_BODY)

_EDGE_HINT = "it belongs on an edge, such as next: {to: x, max_attempts: 3}"
_IGNORED = {
    "multi_agent": "it is ignored here; in newer StateM 'required: true' is a gate, and nothing guards in its place",
    "state_hooks": "it is ignored here; use in_hook and out_hook",
}
"""Keywords of newer StateM that this does not have, and what follows from that."""


class _Reference(Struct, frozen=True):
    """A node name that was used, and where."""

    name: str
    at: int
    where: str


class GraphReader:
    """Reads one runbook. Use once; ``problems`` decides afterwards whether the result may be used."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._checks = CheckReader(problems)
        self._nodes: dict[str, Node] = {}
        self._node_at: dict[str, int] = {}
        self._outcome_at: dict[str, int] = {}
        self._edges: dict[tuple[str, str], Edge] = {}
        self._references: list[_Reference] = []
        self._names_known = True

    def read(self, root: Value, *, digest: str, name: str) -> Runbook:
        """Return the runbook. ``digest`` is its identity; ``name`` is used when the text gives none."""
        if not isinstance(root, Mapping):
            self._problems.error(root.at, "root", "a runbook must be a mapping with nodes and edges")
            root = Mapping({}, {}, root.at)
            self._names_known = False
        fields = Fields(root, "", self._problems, label="root")
        fields.only(ROOT_KEYWORDS, asides=_IGNORED)
        self._read_nodes(fields)
        self._read_edges(fields)
        self._check_outcomes()
        initial = self._initial(fields)
        if self._names_known:
            self._check_references()
            self._look_at_structure(initial)
        return Runbook(
            hash=digest,
            name=fields.name("name") or name,
            initial=initial,
            nodes=tuple(self._nodes.values()),
            edges=tuple(self._edges.values()),
            order=cast(StageOrder, fields.choice("protocol", ("guards_first", "persist_first"), "guards_first")),
            confinement=read_confinement(fields, self._problems),
        )

    # Nodes

    def _read_nodes(self, root: Fields) -> None:
        match root.get("nodes"):
            case None:
                pass
            case Mapping() as nodes:
                for key, value in nodes.entries.items():
                    self._node(key, nodes.key_at[key], value)
            case Sequence() as nodes:
                for number, item in enumerate(nodes.items):
                    self._listed_node(item, f"nodes[{number}]")
            case Scalar() as value:
                self._names_known = False
                self._problems.error(value.at, "nodes", "must be a mapping of nodes or a list of them")
                return
        if not self._nodes and self._names_known:
            self._names_known = False
            at = root.mapping.entries["nodes"].at if root.present("nodes") else root.mapping.at
            self._problems.error(at, "root", "Spec must define at least one node")

    def _listed_node(self, item: Value, where: str) -> None:
        if isinstance(item, Scalar) and item.words is not None:
            self._node(item.words, item.at, None)
        elif isinstance(item, Mapping):
            name = Fields(item, where, self._problems).name("name")
            if name is not None:
                self._node(name, item.at, item)
            else:
                self._names_known = False
                if is_null(item.entries.get("name")):
                    self._problems.error(item.at, where, "a node in a list requires a name")
        else:
            self._names_known = False
            self._problems.error(item.at, where, "a node in a list must be a name or a mapping with a name")

    def _node(self, written: str, at: int, value: Value | None) -> None:
        name = written.strip()
        label = f"node '{name}'"
        if not name:
            self._names_known = False
            self._problems.error(at, "nodes", "the name of a node must not be empty")
            return
        if name in self._nodes:
            self._problems.duplicate(at, "nodes", label, first_at=self._node_at[name])
            return
        # The name is taken before the node is read, so that a broken node is still a known one.
        self._nodes[name] = Node(name)
        self._node_at[name] = at
        match value:
            case Mapping():
                self._nodes[name] = self._node_body(name, Fields(value, f"nodes.{name}", self._problems, label=label))
            case Scalar(data=str() as prompt):
                self._nodes[name] = Node(name, prompt)
            case Scalar(data=None) | None:
                pass
            case _:
                self._problems.error(value.at, label, "a node must be a mapping, a prompt or null")

    def _node_body(self, name: str, fields: Fields) -> Node:
        fields.only(NODE_KEYWORDS, hint_for=lambda key: _EDGE_HINT if key in _EDGE_BODY else "", asides=_IGNORED)
        stated = fields.name("name")
        if stated is not None and stated != name:
            at = fields.mapping.entries["name"].at
            message = f"'{stated}' is ignored, because the node is called '{name}' by its key"
            self._problems.warning(at, fields.path("name"), message)
        for key in ("next", "next_states"):
            self._read_next(name, fields.get(key), fields.path(key))
        outcome = fields.choice("outcome", get_args(EndOutcome), "")
        if outcome:
            self._outcome_at[name] = fields.mapping.entries["outcome"].at
        return Node(
            name=name,
            prompt=fields.text("prompt", "pre_request", "pre-request") or "",
            in_hook=self._checks.steps(fields.get("in_hook"), fields.path("in_hook"), "message"),
            before_transfer=self._checks.steps(fields.get("before_transfer"), fields.path("before_transfer"), "manual"),
            dynamic=self._dynamic(fields),
            out_hook=self._checks.steps(fields.get("out_hook"), fields.path("out_hook"), "message", repairable=True),
            outcome=cast(EndOutcome, outcome) if outcome else None,
        )

    def _dynamic(self, node: Fields) -> DynamicConfig | None:
        key = "dynamic_before_transfer"
        if not node.present(key):
            return None
        value = node.get(key)
        if value is None:
            return DynamicConfig()
        if not isinstance(value, Mapping):
            node.refuse(key, "must be a mapping", hint="write {} for the defaults")
            return None
        fields = Fields(value, node.path(key), self._problems)
        fields.only(DynamicConfig.__struct_fields__)
        fields.choice("path", ("current_entry",), "current_entry")
        fields.choice("merge", ("all",), "all")
        fields.choice("refresh", ("on_attempt",), "on_attempt")
        stale_policy = fields.choice("stale_policy", ("none", "require_confirmation"), "none")
        return DynamicConfig(
            required=bool(fields.flag("required")),
            min_items=fields.integer("min_items", "must be a whole number, 0 or more", least=0) or 0,
            require_reason=bool(fields.flag("require_reason")),
            require_basis=bool(fields.flag("require_basis")),
            stale_policy=cast(Literal["none", "require_confirmation"], stale_policy),
            allow_types=self._allow_types(fields),
        )

    def _allow_types(self, fields: Fields) -> tuple[str, ...]:
        value = fields.get("allow_types")
        if value is None:
            return CHECK_TYPES
        if not isinstance(value, Sequence) or not value.items:
            fields.refuse("allow_types", "must be a list of check types")
            return CHECK_TYPES
        types = tuple(_type_name(item) for item in value.items)
        for number, (name, item) in enumerate(zip(types, value.items, strict=True)):
            if name not in CHECK_TYPES:
                where = f"{fields.path('allow_types')}[{number}]"
                hint = f"use some of {', '.join(CHECK_TYPES)}"
                near = Suggestion(name, CHECK_TYPES)
                self._problems.error(item.at, where, f"unsupported type '{name}'", hint=hint, near=near)
        return types

    # Edges

    def _read_next(self, source: str, value: Value | None, where: str) -> None:
        if isinstance(value, Sequence):
            for number, item in enumerate(value.items):
                self._next(source, item, f"{where}[{number}]")
        elif value is not None:
            self._next(source, value, where)

    def _next(self, source: str, value: Value, where: str) -> None:
        if isinstance(value, Scalar) and value.words and value.words.strip():
            target = value.words.strip()
            self._references.append(_Reference(target, value.at, where))
            self._add(Edge(source, target), value.at, where)
        elif isinstance(value, Mapping):
            fields = Fields(value, where, self._problems)
            fields.only(NEXT_KEYWORDS)
            target = self._end(fields, _NEXT_TARGET_KEYS)
            if fields.first(*_NEXT_TARGET_KEYS) is None:
                fields.wrong("an item of next requires to")
            self._add_with_body(source, target, fields)
        else:
            self._problems.error(value.at, where, "an item of next must be the name of a node or a mapping with to")

    def _read_edges(self, root: Fields) -> None:
        value = root.get("edges")
        if value is None:
            return
        if not isinstance(value, Sequence):
            root.refuse("edges", "must be a list of edges", hint="write one '- {from: A, to: B}' per edge")
            return
        for number, item in enumerate(value.items):
            where = f"edges[{number}]"
            if not isinstance(item, Mapping):
                self._problems.error(item.at, where, "an edge must be a mapping with from and to")
                continue
            fields = Fields(item, where, self._problems)
            fields.only(EDGE_KEYWORDS)
            source, target = self._end(fields, _SOURCE_KEYS), self._end(fields, _TARGET_KEYS)
            for keys in (_SOURCE_KEYS, _TARGET_KEYS):
                if fields.first(*keys) is None:
                    fields.wrong(f"an edge requires {keys[0]}")
            self._add_with_body(source, target, fields)

    def _end(self, fields: Fields, keys: tuple[str, ...]) -> str:
        """Return the name at one end of an edge, or an empty text when there is none to go by."""
        name = fields.name(*keys)
        found = fields.first(*keys)
        if not name or found is None:
            return ""
        self._references.append(_Reference(name, found[1].at, fields.path(found[0])))
        return name

    def _add_with_body(self, source: str, target: str, fields: Fields) -> None:
        evidence = fields.choice("require_evidence", TIERS, "")
        edge = Edge(
            source=source,
            target=target,
            condition=self._checks.steps(fields.get("condition"), fields.path("condition"), "manual"),
            hook=self._checks.steps(fields.get("hook"), fields.path("hook"), "message", repairable=True),
            max_attempts=fields.integer("max_attempts", "max_attempts must be a positive integer", least=1),
            require_evidence=cast(EvidenceTier, evidence) if evidence else None,
        )
        if source and target:
            self._add(edge, fields.mapping.at, fields.where)

    def _add(self, edge: Edge, at: int, where: str) -> None:
        ends = (edge.source, edge.target)
        if ends in self._edges:
            self._problems.error(at, where, f"duplicate edge {edge.source} -> {edge.target}")
        else:
            self._edges[ends] = edge

    # References

    def _initial(self, root: Fields) -> str:
        key = "initial" if root.get("initial") is not None else "start"
        name = root.name(key)
        if name is None:
            return next(iter(self._nodes), "")
        if self._names_known and name not in self._nodes:
            root.refuse(key, f"initial node '{name}' is not defined", near=Suggestion(name, self._nodes))
        return name

    def _check_outcomes(self) -> None:
        """Refuse an outcome on a node that a run goes on from: nobody could say when it would count."""
        targets = dict(reversed(self._edges))
        for name, at in self._outcome_at.items():
            if name in targets:
                message = f"only an end has an outcome, and an edge leads from here to '{targets[name]}'"
                self._problems.error(at, f"nodes.{name}.outcome", message)

    def _check_references(self) -> None:
        for reference in self._references:
            if reference.name not in self._nodes:
                near = Suggestion(reference.name, self._nodes)
                self._problems.error(reference.at, reference.where, f"'{reference.name}' is not a node", near=near)

    def _look_at_structure(self, initial: str) -> None:
        """Advise on nodes that no run comes to, on those that no run gets away from, and on checks that never run."""
        exits: dict[str, list[str]] = {}
        entrances: dict[str, list[str]] = {}
        for source, target in self._edges:
            exits.setdefault(source, []).append(target)
            entrances.setdefault(target, []).append(source)
        ends = [name for name in self._nodes if name not in exits]
        reached = reach([initial], exits)
        # Without any end a runbook is meant to go round for ever, and no part of it is a trap.
        leads_to_an_end = reach(ends, entrances) if ends else set(self._nodes)
        for name, at in self._node_at.items():
            label = f"node '{name}'"
            if name not in reached:
                self._problems.advice(at, label, f"no way leads here from the initial node '{initial}'")
            elif name not in leads_to_an_end:
                message = "no way leads from here to an end of the runbook"
                self._problems.advice(at, label, message, hint="a run that gets here can never finish")
            node = self._nodes[name]
            if name in ends and (node.before_transfer or node.dynamic is not None):
                unused = "before_transfer" if node.before_transfer else "dynamic_before_transfer"
                self._problems.advice(
                    at,
                    label,
                    f"no edge leaves this node, so it is an end and its {unused} never runs",
                    hint="add the edge that is missing, or move the checks to the edges that lead here",
                )


def reach(begin: Iterable[str], ways: dict[str, list[str]]) -> set[str]:
    """Return the nodes that can be reached from some, those included."""
    reached = set(begin)
    waiting = list(reached)
    while waiting:
        for name in ways.get(waiting.pop(), ()):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return reached


def _type_name(value: Value) -> str:
    """Return the text of a check type; what is no text is no type either."""
    return (value.words or "").strip() if isinstance(value, Scalar) else ""
