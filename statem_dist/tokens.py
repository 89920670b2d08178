"""Tokens: who may speak to the service, in which role, and for which runs.

The text of a token is ``stm_ID_SECRET``. The id is no secret: it is listed, logged and kept with what the token was
used for. Of the secret only the SHA-256 is kept. It has 256 random bits, so a hash that is slow on purpose would make
nothing safer, and each request dearer.

Lost replies are borne as everywhere in the store: whatever is sent here may be sent twice.
"""

from __future__ import annotations

import hmac
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from statem_dist.durations import seconds_of
from statem_dist.errors import Conflict, Invalid, NotFound
from statem_dist.protocol.model import SCHEMA
from statem_dist.roles import Role
from statem_dist.store import keys
from statem_dist.store.codec import decode_document
from statem_dist.store.redis_store import RedisStore, Script

State: TypeAlias = Literal["live", "expired", "revoked"]

ID_LENGTH_MAX = 64
NAME_LENGTH_MAX = 100

SECRET_BYTES = 32
"""Random bytes of a secret: nobody guesses 256 bits."""

SECRET_LENGTH = 43
"""Characters of a secret: its bytes in the URL-safe alphabet of base64, without padding."""

TEXT_LENGTH_MAX = len("stm__") + ID_LENGTH_MAX + SECRET_LENGTH
"""Characters of the longest text that may be a token; nothing is done with a longer one."""

LIFE_SECONDS_MAX = 10 * 366 * 86_400
"""The longest life that can be asked for, ten years; a token may also have no end."""

KEPT_MS = 30 * 86_400_000
"""How long a token that has expired or was revoked stays listed."""

_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9-]{{11,{ID_LENGTH_MAX - 1}}}")
_TEXT = re.compile(rf"stm_({_ID.pattern})_([A-Za-z0-9_-]{{{SECRET_LENGTH}}})")

_LIKE_A_TOKEN = re.compile(r"stm_([A-Za-z0-9-]++)_[A-Za-z0-9_-]+")
"""More than ``_TEXT``: most of a secret is still one, whatever has happened to the rest."""

_NO_HASH = "0" * 64
"""What the hash of a secret is compared with where there is none; nothing has this hash."""

_REPLACE = Script("replace")


class Token(Struct, frozen=True):
    """What is known of a token, without its secret.

    Times are in ms since the epoch by the store's clock, 0 for never. ``labels`` are those that a run must have for
    the token to reach it. ``created_by`` and ``revoked_by`` name a user, or the token by which it was done.
    """

    id: str
    name: str
    role: Role
    labels: dict[str, str]
    created_at: int
    created_by: str
    expires_at: int = 0
    revoked_at: int = 0
    revoked_by: str = ""

    def state(self, now: int) -> State:
        """Return what the token is good for at a moment (ms since the epoch)."""
        if self.revoked_at:
            return "revoked"
        return "expired" if 0 < self.expires_at <= now else "live"

    def may(self, run_labels: Mapping[str, str]) -> bool:
        """Return whether the token reaches a run: each of its labels is among those of the run."""
        return all(run_labels.get(key) == value for key, value in self.labels.items())


class StoredToken(Struct, frozen=True):
    """A token as it is kept; ``secret_sha256`` is in hexadecimal digits."""

    token: Token
    secret_sha256: str
    schema: int = SCHEMA


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StoredToken)


class Tokens:
    """The tokens of one state store. Every method may raise ``Unavailable``."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def create(
        self,
        name: str,
        role: Role,
        labels: Mapping[str, str],
        expires_in_seconds: float | None,
        by: str,
        *,
        token_id: str | None = None,
    ) -> tuple[Token, str]:
        """Make a token, and return it with its text: this is the only time that anybody sees that.

        Tokens that ended long ago are dropped on this occasion.

        Args:
            name: what people call it; need not be unique.
            role: what it may do.
            labels: those that a run must have for the token to reach it; none for all runs.
            expires_in_seconds: how long it lives, or None for ever.
            by: who makes it.
            token_id: its id, for a caller that may have to ask again whether it was made.

        Raises:
            Invalid: a value that cannot be used.
            Conflict: there is a token of that id.
        """
        _require_usable(name, role, labels, expires_in_seconds, token_id)
        now = self._store.clock()
        self._drop_old(now)
        token = Token(
            id=token_id or secrets.token_hex(8),
            name=name,
            role=role,
            labels=dict(labels),
            created_at=now,
            created_by=by,
            expires_at=0 if expires_in_seconds is None else now + math.ceil(expires_in_seconds * 1000),
        )
        secret = secrets.token_urlsafe(SECRET_BYTES)
        document = _encoder.encode(StoredToken(token=token, secret_sha256=_hash(secret)))
        self._store.call("SET", keys.TOKENS_IN_USE, 1)
        # First the list: a token that is not listed could not be found to be revoked.
        self._store.call("ZADD", keys.TOKENS, "NX", now, token.id)
        written = self._store.call("SET", keys.token(token.id), document, "NX")
        # Refused as existing it may be our own, if the reply to a first try was lost.
        if written is None and self._store.call("GET", keys.token(token.id)) != document:
            raise Conflict(
                f"There is a token {token.id!r} already.",
                hint="Its text was shown when it was made; revoke it and make another one if that is lost.",
                details={"id": token.id},
            )
        return token, f"stm_{token.id}_{secret}"

    def named(self, text: str) -> Token | None:
        """Return the live token that a text is, or None.

        An id that does not exist costs what a wrong secret does.
        """
        if (found := _parts(text)) is None:
            return None
        token_id, secret = found
        stored = self._load(token_id)
        genuine = hmac.compare_digest(_hash(secret), stored.secret_sha256 if stored else _NO_HASH)
        if stored is None or not genuine or stored.token.state(self._store.clock()) != "live":
            return None
        return stored.token

    def get(self, token_id: str) -> Token | None:
        """Return a token by its id, whatever its state, or None."""
        stored = self._load(token_id)
        return stored.token if stored else None

    def revoke(self, token_id: str, by: str) -> Token:
        """End a token at once, and return it; one that was revoked before stays as it is.

        Raises:
            NotFound: there is no such token.
        """
        while True:
            before = self._document(token_id)
            if before is None:
                raise token_not_found(token_id)
            stored = _decoded(before)
            if stored.token.revoked_at:
                return stored.token
            token = replace(stored.token, revoked_at=self._store.clock(), revoked_by=by)
            after = _encoder.encode(replace(stored, token=token))
            if self._store.call("EVAL", _REPLACE.source, 1, keys.token(token_id), before, after):
                return token

    def in_use(self) -> bool:
        """Return whether a token was ever made here; it stays true when all of them have ended.

        A service that asks nobody who does not have one must not begin to when the last one is revoked.
        """
        return bool(self._store.call("EXISTS", keys.TOKENS_IN_USE))

    def list(self) -> Sequence[Token]:
        """Return the tokens, newest first, those that ended less than ``KEPT_MS`` ago included."""
        ids = self._store.call("ZREVRANGE", keys.TOKENS, 0, -1)
        documents = self._store.call_many(("GET", keys.token(each.decode())) for each in ids) if ids else ()
        return [_decoded(document).token for document in documents if document is not None]

    def _document(self, token_id: str) -> bytes | None:
        if not _ID.fullmatch(token_id):
            return None
        document: bytes | None = self._store.call("GET", keys.token(token_id))
        return document

    def _load(self, token_id: str) -> StoredToken | None:
        document = self._document(token_id)
        return None if document is None else _decoded(document)

    def forget(self, token_id: str) -> None:
        """End a token at once, and keep nothing of it: for one that was made for a single piece of work.

        What it was used for still names it. One that is not there is no error.
        """
        self._store.call("DEL", keys.token(token_id))
        self._store.call("ZREM", keys.TOKENS, token_id)

    def _drop_old(self, now: int) -> None:
        """Drop tokens that ended long ago, and what a creation that was cut short has left in the list."""
        listed = self._store.call("ZRANGEBYSCORE", keys.TOKENS, "-inf", now - KEPT_MS)
        for token_id in map(bytes.decode, listed):
            token = self.get(token_id)
            ended_at = (token.revoked_at or token.expires_at) if token else 1
            if 0 < ended_at <= now - KEPT_MS:
                self.forget(token_id)


def token_not_found(token_id: str) -> NotFound:
    """Return the error for a token that does not exist; what was given for its id may have been the token itself."""
    return NotFound(
        f"Token not found: {redacted(token_id)}",
        hint="`statem-dist token list` lists the tokens with their ids.",
        details={"id": redacted(token_id)},
    )


def token_view(token: Token, now: int) -> dict[str, Any]:
    """Return a token as commands and the service show it; times that never come are None.

    Args:
        token: the token.
        now: ms since the epoch, by the clock of the store.
    """
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "labels": token.labels,
        "state": token.state(now),
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at or None,
        "revoked_at": token.revoked_at or None,
        "revoked_by": token.revoked_by or None,
    }


def life_seconds(text: str, now: int) -> float:
    """Return how long a token lives, in seconds, as people ask for it.

    Args:
        text: a duration (``90d``, ``12h``, ``30m``, ``45s``) or an ISO date or time. A date means its beginning, and
            where no offset is given UTC is meant.
        now: ms since the epoch.

    Raises:
        Invalid: it is neither, is over already, or is too far away.
    """
    seconds = seconds_of(text, "smhd")
    if seconds is None:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise Invalid(
                f"{text!r} is no time at which a token can expire.",
                hint="Write a duration (90d, 12h, 30m, 45s), or an ISO date such as 2030-01-31.",
            ) from None
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = aware.timestamp() - now / 1000
        if seconds <= 0:
            raise Invalid(f"A token cannot expire at {text!r}: that is over.", hint="Choose a time that is to come.")
    _require_life(seconds)
    return seconds


def id_within(given: str) -> str:
    """Return the id of a token that is given by its text or by its id."""
    found = _LIKE_A_TOKEN.fullmatch(given.strip())
    return found[1] if found else given


def redacted(text: str) -> str:
    """Return a text with every secret of a token in it blotted out: ``stm_ID_***``."""
    return _LIKE_A_TOKEN.sub(r"stm_\1_***", text)


def _parts(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of what may be a token."""
    if len(text) > TEXT_LENGTH_MAX or (found := _TEXT.fullmatch(text)) is None:
        return None
    return found[1], found[2]


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _decoded(document: bytes) -> StoredToken:
    return decode_document(document, _decoder, "token")


def _require_usable(
    name: str, role: Role, labels: Mapping[str, str], expires_in_seconds: float | None, token_id: str | None
) -> None:
    if len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise Invalid(f"A token's name has at most {NAME_LENGTH_MAX} characters, all printable; {name!r} has others.")
    if role not in get_args(Role):
        raise Invalid(f"A token's role is one of {', '.join(get_args(Role))}, not {role!r}.")
    if "" in labels:
        raise Invalid("A label needs a key.")
    if expires_in_seconds is not None:
        _require_life(expires_in_seconds)
    if token_id is not None and not _ID.fullmatch(token_id):
        raise Invalid(
            f"A token's id has 12 to {ID_LENGTH_MAX} letters, digits and hyphens, the first no hyphen; "
            f"{redacted(token_id)!r} has not."
        )


def _require_life(seconds: float) -> None:
    if not 0 < seconds <= LIFE_SECONDS_MAX:
        raise Invalid(
            f"A token lives longer than 0 seconds and at most {LIFE_SECONDS_MAX // (366 * 86_400)} years.",
            hint="Name no end for a token that never expires.",
        )
