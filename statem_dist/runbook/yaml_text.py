"""YAML text to a positioned tree, safely.

PyYAML's parser (libyaml where it is built in) delivers events; this module builds the tree from them itself.
That is what makes the following possible, each of which PyYAML's own constructors get wrong for runbooks:

- every value keeps its place;
- a key given twice is an error that names both lines, instead of a silently lost node; ``a`` and ``"a"`` are
  the same key. Merge keys (``<<``) still work: own keys win, and earlier bases win over later ones;
- aliases are followed by reference, and their expanded size is counted as they are met, so that an alias bomb
  is refused after a few events; an anchor that contains itself is refused;
- depth is bounded before anything recursive walks the tree;
- only the core tags exist, so no object is ever constructed.
"""

from __future__ import annotations

import re

import yaml
from msgspec import Struct, field

from statem_dist.errors import RunbookInvalid
from statem_dist.runbook import tree
from statem_dist.runbook.problems import Problems
from statem_dist.runbook.tree import Mapping, Scalar, Sequence, Value

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG_PREFIX = "tag:yaml.org,2002:"
_SCALAR_TAGS: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
}
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_COMMENT = re.compile(r"[ \t]+#")

_HINTS = (
    ("unknown escape character", "in double quotes a backslash starts an escape; write the text in single quotes"),
    ("mapping values are not allowed", "a text that contains ': ' must be quoted"),
    ("could not find expected ':'", "a key needs a colon and a blank behind it"),
    ("cannot start any token", "a text that begins with a special character must be quoted"),
    ("unexpected end of stream", "a quotation mark or bracket is not closed"),
    ("node content", "a value is missing, or a bracket is not closed"),
    ("',' or", "a comma is missing, or a bracket is not closed"),
    ("'-' indicator", "the items of a list begin in the same column, each with '- '"),
    ("expected key", "the keywords of a mapping begin in the same column, each with a colon behind it"),
    ("<block end>", "what belongs together begins in the same column"),
)


def read_yaml(text: str, problems: Problems) -> Value | None:
    """Return the tree of the first document, or None when there is nothing but blanks and comments.

    Duplicate keys, a second document and unusable scalars are noted in ``problems``.

    Raises:
        RunbookInvalid: the text is no YAML, or exceeds a limit.
    """
    if forbidden := _FORBIDDEN.search(text):
        name = f"U+{ord(forbidden.group()):04X}"
        raise problems.fatal(forbidden.start(), f"the character {name} is not allowed in YAML text")
    return _Builder(text, problems).build()


class _Open(Struct):
    """A collection whose end has not been seen. ``key`` is None while a mapping waits for its next key."""

    at: int
    anchor: str | None
    mapping: bool
    items: list[Value] = field(default_factory=list)
    entries: dict[str, Value] = field(default_factory=dict)
    key_at: dict[str, int] = field(default_factory=dict)
    bases: list[Mapping] = field(default_factory=list)
    key: str | None = None
    key_place: int = 0
    key_merges: bool = False
    size: int = 1
    height: int = 1


class _Anchored(Struct, frozen=True):
    """What an alias stands for: the value, how many values that is, and how deep they nest."""

    value: Value
    size: int
    height: int


def _start(event: yaml.Event) -> int:
    """Return the offset of an event's first character; parsed events always have marks."""
    return event.start_mark.index if event.start_mark else 0


def _end(event: yaml.Event) -> int:
    return event.end_mark.index if event.end_mark else 0


class _Builder:
    def __init__(self, text: str, problems: Problems) -> None:
        self._text = text
        self._problems = problems
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchored | None] = {}
        self._nodes = 0
        self._root: Value | None = None
        self._documents = 0

    def build(self) -> Value | None:
        try:
            for event in yaml.parse(self._text, Loader=_LOADER):
                if isinstance(event, yaml.DocumentStartEvent):
                    self._documents += 1
                    if self._documents > 1:
                        self._problems.error(
                            _start(event), "", "a second document starts here", hint="use one file per runbook"
                        )
                        break
                else:
                    self._take(event)
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        return self._root

    def _take(self, event: yaml.Event) -> None:
        match event:
            case yaml.ScalarEvent():
                self._count(1, event)
                scalar = self._scalar(event)
                self._put(scalar, event.anchor, size=1, height=0, merges=event.implicit[0] and event.value == "<<")
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._begin(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                done = self._open.pop()
                self._put(self._close(done), done.anchor, size=done.size, height=done.height)
            case yaml.AliasEvent():
                target = self._alias(event)
                self._put(target.value, None, size=target.size, height=target.height)

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        at = _start(event)
        mapping = isinstance(event, yaml.MappingStartEvent)
        self._count(1, event)
        if len(self._open) >= tree.DEPTH_MAX:
            raise self._problems.fatal(at, f"nested deeper than {tree.DEPTH_MAX} levels")
        if event.tag not in (None, "!", _TAG_PREFIX + ("map" if mapping else "seq")):
            self._unsupported_tag(event)
        if self._open and self._open[-1].mapping and self._open[-1].key is None:
            raise self._problems.fatal(
                at, "a key must be text, not a list or mapping", hint="quote a text that begins with a bracket"
            )
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._open.append(_Open(at=at, anchor=event.anchor, mapping=mapping))

    def _alias(self, event: yaml.AliasEvent) -> _Anchored:
        at, name = _start(event), event.anchor
        if name not in self._anchors:
            raise self._problems.fatal(
                at, f"alias '*{name}' has no anchor before it", hint="quote a text that begins with an asterisk"
            )
        target = self._anchors[name]
        if target is None:
            raise self._problems.fatal(at, f"alias '*{name}' stands inside its own anchor; recursion is not allowed")
        self._count(target.size, event)
        if len(self._open) + target.height > tree.DEPTH_MAX:
            raise self._problems.fatal(at, f"nested deeper than {tree.DEPTH_MAX} levels by alias '*{name}'")
        return target

    def _count(self, nodes: int, event: yaml.Event) -> None:
        self._nodes += nodes
        if self._nodes > tree.NODES_MAX:
            raise self._problems.fatal(_start(event), f"more than {tree.NODES_MAX:,} values once aliases are expanded")

    def _scalar(self, event: yaml.ScalarEvent) -> Scalar:
        at, text = _start(event), event.value
        tag = None if event.tag in (None, "!") else event.tag
        unquoted = tag is None and event.implicit[0]
        data: tree.Plain = text
        if unquoted or tag not in (None, _TAG_PREFIX + "str"):
            try:
                data = tree.resolve(text)
            except ValueError as error:
                self._problems.error(at, "", str(error))
        if tag is not None and tag != _TAG_PREFIX + "str":
            kind = tag.removeprefix(_TAG_PREFIX)
            if kind not in _SCALAR_TAGS:
                self._unsupported_tag(event)
            elif type(data) not in _SCALAR_TAGS[kind]:
                self._problems.error(at, "", f"'{text}' is no {kind}")
        if name := tree.unusable_character(text):
            self._problems.error(at, "", f"the text contains the character {name}, which nothing can carry")
        commented = unquoted and _COMMENT.match(self._text, _end(event)) is not None
        return Scalar(data, text, at, commented)

    def _put(self, value: Value, anchor: str | None, *, size: int, height: int, merges: bool = False) -> None:
        """Hand a finished value to the collection around it."""
        if anchor is not None:
            self._anchors[anchor] = _Anchored(value, size, height)
        if not self._open:
            self._root = value
            return
        around = self._open[-1]
        around.size += size
        around.height = max(around.height, height + 1)
        if not around.mapping:
            around.items.append(value)
        elif around.key is None:
            if not isinstance(value, Scalar):
                raise self._problems.fatal(value.at, "a key must be text, not a list or mapping")
            around.key, around.key_place, around.key_merges = value.text, value.at, merges
        else:
            self._enter(around, around.key, value)
            around.key = None

    def _enter(self, around: _Open, key: str, value: Value) -> None:
        if key in around.key_at:
            self._problems.duplicate(around.key_place, "", f"key '{key}'", first_at=around.key_at[key])
            return
        around.key_at[key] = around.key_place
        if not around.key_merges:
            around.entries[key] = value
            return
        bases = value.items if isinstance(value, Sequence) else (value,)
        for base in bases:
            if isinstance(base, Mapping):
                around.bases.append(base)
            else:
                self._problems.error(around.key_place, "", "a merge key '<<' takes a mapping or a list of mappings")

    def _close(self, done: _Open) -> Value:
        if not done.mapping:
            return Sequence(tuple(done.items), done.at)
        if not done.bases:
            return Mapping(done.entries, done.key_at, done.at)
        entries: dict[str, Value] = {}
        key_at: dict[str, int] = {}
        for base in done.bases:
            for key, value in base.entries.items():
                entries.setdefault(key, value)
                key_at.setdefault(key, base.key_at[key])
        return Mapping(entries | done.entries, key_at | done.key_at, done.at)

    def _unsupported_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        tag = (event.tag or "").replace(_TAG_PREFIX, "!!")
        self._problems.error(_start(event), "", f"unsupported tag '{tag}'", hint="quote a text that begins with '!'")

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> RunbookInvalid:
        said = error.problem or "the text is no YAML"
        mark = error.problem_mark or error.context_mark
        at = mark.index if mark else 0
        if at >= len(self._text.rstrip()) and error.context_mark:
            # The parser noticed at the very end; what matters is where the unfinished thing began.
            at = error.context_mark.index
        elif error.context and error.context_mark and error.context_mark.line != (mark.line if mark else None):
            said = f"{said}, {error.context} that began on line {error.context_mark.line + 1}"
        if self._text[at : at + 1] == "\t" or "tab character" in said:
            return self._problems.fatal(
                at, "a tab is used for indentation; YAML allows only spaces there", hint="replace the tab by spaces"
            )
        return self._problems.fatal(at, said, hint=next((hint for part, hint in _HINTS if part in said), ""))
