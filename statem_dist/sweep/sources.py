"""Values of an axis that stand in a file, one per line of text or one field of each record, or that are file names.

``package:NAME/PATH`` names a file inside an installed package. The package is found without being imported, because
data sets come in packages that import half the world.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterator
from glob import iglob
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

PACKAGE_PREFIX = "package:"

FORMATS = (".jsonl", ".csv", ".txt")
"""The suffixes that are read, each also with ``.gz`` behind it."""

NAME_FIELDS = ("path", "name", "stem")
"""What of a file's name a value can be where ``from`` is a pattern; the first is what it is by itself."""

_PATTERN_CHARACTERS = frozenset("*?[")


def locate(source: str, folder: Path) -> Path:
    """Return the file that ``from`` means.

    Args:
        source: a path relative to ``folder``, an absolute one, or ``package:NAME/PATH``.
        folder: the folder of the sweep file.

    Raises:
        ValueError: the package is not installed.
    """
    if not source.startswith(PACKAGE_PREFIX):
        return folder / source
    package, _, inside = source.removeprefix(PACKAGE_PREFIX).partition("/")
    found = find_spec(package) if package.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"the package '{package}' is not installed for this Python; install what brings it")
    return Path(next(iter(found.submodule_search_locations))) / inside


def is_pattern(source: str) -> bool:
    """Return whether ``from`` stands for all files whose names match it."""
    return not _PATTERN_CHARACTERS.isdisjoint(source)


def find_names(pattern: Path, folder: Path, field: str | None) -> list[str]:
    """Return the names of the files that match a pattern, sorted. Hidden files match only what begins with a dot.

    Args:
        pattern: a path with ``*``, ``?``, ``[...]``, or ``**`` for folders of any depth.
        folder: what paths are relative to; a file outside of it has its absolute path.
        field: one of ``NAME_FIELDS``; None for the first.

    Raises:
        ValueError: there is no such field.
    """
    if field not in (None, *NAME_FIELDS):
        raise ValueError(f"the names of files have no '{field}'; use one of {', '.join(NAME_FIELDS)}")
    files = [Path(os.path.normpath(name)) for name in iglob(str(pattern), recursive=True) if os.path.isfile(name)]
    if field in ("name", "stem"):
        return sorted(str(getattr(file, field)) for file in files)
    return sorted((file.relative_to(folder) if file.is_relative_to(folder) else file).as_posix() for file in files)


def read_values(path: Path, field: str | None) -> Iterator[str]:
    """Yield the values of a file in its order; blank lines are none.

    Args:
        path: a file with one of ``FORMATS``.
        field: which field of each record; None for a text file, where each line is a value.

    Raises:
        ValueError: the file cannot be read as what its suffix says, or a record has no such field.
    """
    zipped = path.suffix == ".gz"
    kind = (path.with_suffix("") if zipped else path).suffix
    if kind not in FORMATS:
        raise ValueError(f"'{path.name}' is none of {', '.join(FORMATS)}, with or without .gz")
    if (kind == ".txt") != (field is None):
        raise ValueError("a text file has no fields" if field else f"a {kind} file needs 'field'")
    try:
        with gzip.open(path, "rt", encoding="utf-8") if zipped else path.open(encoding="utf-8", newline="") as file:
            for number, value in enumerate(_values(file, kind, field), start=1):
                if value is None:
                    raise ValueError(f"record {number} of '{path}' has no text or number as '{field}'")
                yield value
    except (OSError, EOFError) as error:
        raise ValueError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise ValueError(f"'{path}' is no valid {kind} file: {error}") from error


def _values(file: TextIO, kind: str, field: str | None) -> Iterator[str | None]:
    if field is None:
        yield from (line.strip() for line in file if line.strip())
    elif kind == ".csv":
        yield from (record.get(field) for record in csv.DictReader(file))
    else:
        yield from (_text(json.loads(line), field) for line in file if line.strip())


def _text(record: Any, field: str) -> str | None:
    value = record.get(field) if isinstance(record, dict) else None
    if isinstance(value, str):
        return value
    # As JSON writes it: `true` and not `True`, so that a value reads as in the file.
    return json.dumps(value) if isinstance(value, int | float) else None
