"""The reference in ``docs/api.md``, made from the OpenAPI document: ``make reference`` writes it anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from statem_api.app import make_app, openapi
from statem_api.options import ApiOptions
from statem_api.problems import KINDS
from statem_dist.settings import Settings

MARK = "<!-- What follows is made by `make reference`. -->\n"
"""Stands between what people wrote and what is made."""

METHODS = ("get", "post", "put", "delete")

EVERYWHERE = ("400", "401", "403", "413", "415", "422", "500", "503")
"""Statuses that any request may get; they are told once."""


def document() -> dict[str, Any]:
    """Return the OpenAPI document; no store is reached for it."""
    return openapi(make_app(ApiOptions(), Settings(state_dir=Path(".statem"), redis_url="redis://localhost:6379/0")))


def reference() -> str:
    """Return the reference as Markdown."""
    told = document()
    parts = ["## Resources\n"]
    for tag in _tags(told):
        parts.append(f"### {tag.capitalize()}\n")
        parts += [
            _operation(path, method, operation, told)
            for path, methods in told["paths"].items()
            for method, operation in methods.items()
            if method in METHODS and operation["tags"][0] == tag
        ]
    parts.append("## Problems\n\n| `code` | what it means |\n|---|---|")
    parts += [f"| `{code}` | {meaning} |" for code, meaning in KINDS.items()]
    return "\n".join(parts) + "\n"


def write(path: Path) -> None:
    """Write the made part of a file anew; what stands before the mark stays."""
    written, mark, _ = path.read_text(encoding="utf-8").partition(MARK)
    path.write_text(f"{written}{mark or MARK}\n{reference()}", encoding="utf-8")


def _tags(told: dict[str, Any]) -> list[str]:
    """Return the tags in the order in which they first occur, the common ones last."""
    found = dict.fromkeys(operation["tags"][0] for methods in told["paths"].values() for operation in methods.values())
    return [tag for tag in found if tag != "health"] + ["health"]


def _operation(path: str, method: str, operation: dict[str, Any], told: dict[str, Any]) -> str:
    lines = [f"#### `{method.upper()} {path}`\n", f"{operation['description']}\n"]
    if parameters := [each for each in operation.get("parameters", []) if each["in"] in ("query", "header")]:
        lines.append("| parameter | in | |")
        lines.append("|---|---|---|")
        lines += [
            f"| `{_shown(each)}` | {each['in']} | {_told(each.get('description', ''))}{_default(each['schema'])} |"
            for each in parameters
        ]
        lines.append("")
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if name := content.get("schema", {}).get("$ref", "").rpartition("/")[2]:
        lines.append("| field | |")
        lines.append("|---|---|")
        schema = told["components"]["schemas"][name]
        required = schema.get("required", [])
        lines += [
            f"| `{field}` | {'required. ' if field in required else ''}{_told(each.get('description', ''))}"
            f"{_default(each)} |"
            for field, each in schema["properties"].items()
        ]
        lines.append("")
    lines += _answers(operation["responses"], told)
    return "\n".join(lines)


def _answers(responses: dict[str, Any], told: dict[str, Any]) -> list[str]:
    """Return the lines that tell of the answers: what is in good ones, then problems. Equal ones share a line."""
    good: dict[str, list[str]] = {}
    for status, response in responses.items():
        if status.startswith("2"):
            good.setdefault(_content(response, told), []).append(status)
    lines = [f"Answers {' or '.join(sorted(statuses))}: {content}.\n" for content, statuses in good.items()]
    if bad := [status for status in responses if not status.startswith("2") and status not in EVERYWHERE]:
        lines.append(f"Problems: {', '.join(bad)}.\n")
    return lines


def _content(response: dict[str, Any], told: dict[str, Any]) -> str:
    """Return what an answer holds, by media type: the fields of JSON, or that it is a text."""
    found = [
        _fields(content.get("schema", {}), told) if kind == "application/json" else f"`{kind}`"
        for kind, content in response.get("content", {}).items()
    ]
    return ", or ".join(found) or "nothing"


def _fields(schema: dict[str, Any], told: dict[str, Any]) -> str:
    """Return the fields of an object in a line; those of what a field holds follow it in parentheses."""
    resolved = _resolved(schema, told)
    fields = []
    for name, each in resolved.get("properties", {}).items():
        held = each.get("items", each)
        # Only a shape of its own has fields to tell of.
        inner = f" ({_fields(held, told)})" if "$ref" in held else ""
        fields.append(f"`{name}`{' (a list)' if not inner and 'items' in each else ''}{inner}")
    return ", ".join(fields) or "a JSON object"


def _resolved(schema: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """Return a schema, or the component that it refers to."""
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = told["components"]["schemas"][name] if name else schema
    return found


def _shown(parameter: dict[str, Any]) -> str:
    """Return the name of a parameter, that of a header as people write it."""
    name: str = parameter["name"]
    return name.title() if parameter["in"] == "header" else name


def _told(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return "" if default in (None, "", [], {}) else f" Default: `{default}`."


if __name__ == "__main__":
    write(Path(sys.argv[1]))
