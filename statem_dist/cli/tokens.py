"""Commands on the tokens of the service: ``token create``, ``token list``, ``token revoke``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from statem_dist.cli.answer import Answer, printable
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import JsonOption, StateDirOption, caller_name, pairs, session
from statem_dist.roles import Role
from statem_dist.tokens import Token, id_within, life_seconds, token_not_found, token_view


def create(
    role: Annotated[Role, Option("--role", help="What it may do.")],
    name: Annotated[str, Option("--name", metavar="NAME", help="What it is called in lists.")] = "",
    label: Annotated[
        list[str] | None,
        Option("--label", metavar="KEY=VALUE", help="Only for runs with this label; repeatable."),
    ] = None,
    expires: Annotated[
        str | None,
        Option("--expires", metavar="WHEN", help="After 90d, 12h, 30m, 45s, or at an ISO date (default: never)."),
    ] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Make a token for the service, and print it: it is shown this once.

    Example: statem-dist token create --role agent --label team=blue --expires 30d
    """
    labels = pairs(label, "--label")
    with session(state_dir) as at:
        life = None if expires is None else life_seconds(expires, at.engine.clock())
        token, text = at.tokens.create(name, role, labels, life, caller_name())
    if not as_json:
        # What is on stdout is the token alone, for TOKEN=$(statem-dist token create ...).
        print(printable(f"Created: {_told(token, token.created_at)}. It is shown this once."), file=sys.stderr)
    return Answer({"ok": True, "token": text, **token_view(token, token.created_at)}, lambda: text)


def list_(state_dir: StateDirOption = None, as_json: JsonOption = False) -> Answer:
    """List the tokens, newest first; those that have ended stay listed for 30 days.

    Example: statem-dist token list
    """
    with session(state_dir) as at:
        found: Sequence[Token] = [] if at.nothing_yet else at.tokens.list()
        now = at.engine.clock() if found else 0
    data = {"ok": True, "tokens": [token_view(each, now) for each in found]}
    return Answer(data, lambda: _table(found, now) if found else "There are no tokens.")


def revoke(
    token_id: Annotated[
        str, Argument(metavar="ID", help="Its id, or its text, of which the id is a part.", complete="tokens")
    ],
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """End a token at once; who uses it is refused from now on.

    Example: statem-dist token revoke 3f9c0a6d51e27b84
    """
    with session(state_dir) as at:
        if at.nothing_yet:
            raise token_not_found(token_id)
        token = at.tokens.revoke(id_within(token_id), caller_name())
        now = at.engine.clock()
    return Answer({"ok": True, **token_view(token, now)}, lambda: f"Revoked: {_told(token, now)}.")


def _told(token: Token, now: int) -> str:
    """Return what a token is, in a few words."""
    labels = "".join(f", only runs with {key}={value}" for key, value in token.labels.items())
    called = f" {token.name}" if token.name else ""
    return f"token {token.id}{called} ({token.role}{labels}, {_end(token, now)})"


def _end(token: Token, now: int) -> str:
    from statem_dist.cli.text import span

    match token.state(now):
        case "revoked":
            return f"revoked {span(now - token.revoked_at)} ago by {token.revoked_by}"
        case "expired":
            return f"expired {span(now - token.expires_at)} ago"
        case "live" if token.expires_at:
            return f"expires in {span(token.expires_at - now)}"
        case "live":
            return "never expires"


def _table(found: Sequence[Token], now: int) -> str:
    """Return tokens as aligned lines under a heading."""
    from statem_dist.cli.text import span
    from statem_dist.columns import aligned

    rows = [("id", "name", "role", "made", "state", "labels")]
    for token in found:
        made = f"{span(now - token.created_at)} ago by {token.created_by}"
        labels = " ".join(f"{key}={value}" for key, value in token.labels.items())
        rows.append((token.id, token.name, token.role, made, _end(token, now), labels))
    return aligned(rows)
