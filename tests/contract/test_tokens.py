"""Tokens in Redis: who is let in, who is not, and what is kept."""

from __future__ import annotations

import hmac
import json
import os
import stat
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from statem_dist import tokens
from statem_dist.embedded.token_file import local_admin_token
from statem_dist.errors import Conflict, Invalid, NotFound, StoredDataUnreadable, Unavailable
from statem_dist.store import keys
from statem_dist.store.client import Argument, Client, Subscription, Unreachable
from statem_dist.store.redis_store import RedisStore
from statem_dist.tokens import KEPT_MS, TEXT_LENGTH_MAX, Tokens
from tests.contract.conftest import RedisBench

DAY_SECONDS = 86_400.0


class MovableStore(RedisStore):
    """A store whose clock can be put forward."""

    ahead_ms = 0

    def clock(self) -> int:
        """Return the server's time, and how far it was put forward."""
        return super().clock() + self.ahead_ms


class ForgetfulClient:
    """A client whose first reply to a command is lost, after the server has carried it out."""

    def __init__(self, client: Client, command: str) -> None:
        self._client = client
        self._to_lose = [command]

    def call(self, *command: Argument) -> Any:
        """Send one command."""
        reply = self._client.call(*command)
        if command[0] in self._to_lose:
            self._to_lose.clear()
            raise Unreachable("the reply is lost")
        return reply

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Send several commands."""
        return self._client.call_many(commands)

    def subscribe(self, channels: Sequence[str]) -> Subscription:
        """Listen to channels."""
        return self._client.subscribe(channels)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()


class Desk:
    """The tokens of a store whose clock can be put forward."""

    def __init__(self, bench: RedisBench) -> None:
        self.store = MovableStore(bench.redis_store.client, patience_seconds=30)
        self.tokens = Tokens(self.store)

    def make(self, life: float | None = None, **more: Any) -> tuple[str, str]:
        """Make an agent's token, and return its id and its text."""
        token, text = self.tokens.create("ci", "agent", {"team": "blue"}, life, "alice", **more)
        return token.id, text

    def listed(self) -> list[str]:
        """Return the ids of the tokens that are listed."""
        return [token.id for token in self.tokens.list()]


@pytest.fixture
def desk(redis_bench: RedisBench) -> Desk:
    """The tokens of each Redis in turn; there are none."""
    return Desk(redis_bench)


def secret_of(text: str) -> str:
    """Return the secret of a token."""
    return text.split("_", 2)[2]


# --- who is let in -------------------------------------------------------------------------------------------------


def test_a_token_is_known_by_its_text(desk: Desk) -> None:
    """With all that it was made with; its text has its id, and no characters that a shell or a URL would mind."""
    token, text = desk.tokens.create("ci", "operator", {"team": "blue"}, 60, "alice")
    assert desk.tokens.named(text) == desk.tokens.get(token.id) == token
    assert (token.name, token.role, token.labels, token.created_by) == ("ci", "operator", {"team": "blue"}, "alice")
    assert token.expires_at - token.created_at == 60_000
    assert text.startswith(f"stm_{token.id}_")
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def test_no_two_tokens_are_alike(desk: Desk) -> None:
    """Neither their ids nor their secrets."""
    made = [desk.make() for _ in range(20)]
    assert len({token_id for token_id, _ in made}) == len({secret_of(text) for _, text in made}) == 20


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda text, other: "", id="nothing"),
        pytest.param(lambda text, other: text[:-1], id="truncated"),
        pytest.param(lambda text, other: text + "A", id="longer"),
        pytest.param(lambda text, other: text + "A" * 10_000_000, id="far too long"),
        pytest.param(lambda text, other: text[:-1] + ("A" if text[-1] != "A" else "B"), id="wrong secret"),
        pytest.param(lambda text, other: f"stm_{'0' * 16}_{secret_of(text)}", id="forged id"),
        pytest.param(lambda text, other: f"stm_{text.split('_')[1]}_{secret_of(other)}", id="another's secret"),
        pytest.param(lambda text, other: text.replace("stm_", "STM_"), id="another prefix"),
        pytest.param(lambda text, other: f" {text}", id="space before"),
        pytest.param(lambda text, other: f"{text}\n", id="line end"),
        pytest.param(lambda text, other: text[:-1] + "é", id="another alphabet"),
        pytest.param(lambda text, other: text[:-1] + "\N{FULLWIDTH DIGIT ONE}", id="digits of another script"),
        pytest.param(lambda text, other: text[:-1] + "\0", id="NUL"),
        pytest.param(lambda text, other: text[:-1] + "\udcff", id="no text"),
        pytest.param(lambda text, other: f"stm_*_{secret_of(text)}", id="a pattern"),
        pytest.param(
            lambda text, other: f"stm_{text.split('_')[1]}_{sha256(secret_of(text).encode()).hexdigest()}",
            id="the hash",
        ),
    ],
)
def test_what_is_no_token_names_nobody(desk: Desk, forge: Any) -> None:
    """However near it comes."""
    (_, text), (_, other) = desk.make(), desk.make()
    assert desk.tokens.named(text) is not None
    assert desk.tokens.named(forge(text, other)) is None


def test_too_long_a_text_costs_no_look_at_the_store(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does anything else that cannot be a token; the longest one is still looked for."""
    _, longest = desk.make(token_id="a" * 64)
    assert len(longest) == TEXT_LENGTH_MAX
    assert desk.tokens.named(longest) is not None
    asked: list[str] = []
    monkeypatch.setattr(desk.store, "call", lambda *command: asked.append(str(command[0])))
    assert desk.tokens.named(longest + "a") is None
    assert desk.tokens.named("stm_x_y") is None
    assert asked == []
    assert desk.tokens.named(longest) is None
    assert asked == ["GET"]


def test_an_unknown_id_is_compared_like_a_known_one(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """One comparison of two hashes in constant time for each text that may be a token, whatever comes of it."""
    token_id, text = desk.make()
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def watched(given: str, kept: str) -> bool:
        compared.append((len(given), len(kept)))
        return compare(given, kept)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    wrong = f"stm_{token_id}_{'A' * 43}"
    unknown = f"stm_{'0' * 16}_{secret_of(text)}"
    assert [desk.tokens.named(each) is not None for each in (text, wrong, unknown)] == [True, False, False]
    assert compared == [(64, 64)] * 3


def test_an_expired_token_names_nobody(desk: Desk) -> None:
    """By the clock of the store, from its last moment on; it stays listed."""
    token_id, text = desk.make(60)
    desk.store.ahead_ms = 50_000
    assert desk.tokens.named(text) is not None
    desk.store.ahead_ms = 60_000
    assert desk.tokens.named(text) is None
    assert desk.tokens.list()[0].state(desk.store.clock()) == "expired"
    assert desk.listed() == [token_id]


# --- the end of one ------------------------------------------------------------------------------------------------


def test_a_revoked_token_names_nobody_at_once(desk: Desk) -> None:
    """Others go on; that it was revoked once more changes nothing."""
    (token_id, text), (_, other) = desk.make(), desk.make()
    revoked = desk.tokens.revoke(token_id, "bob")
    assert (desk.tokens.named(text), revoked.revoked_by) == (None, "bob")
    desk.store.ahead_ms = 5000
    assert desk.tokens.revoke(token_id, "carol") == revoked == desk.tokens.get(token_id)
    assert desk.tokens.named(other) is not None


def test_a_forgotten_token_names_nobody_and_is_not_listed(desk: Desk) -> None:
    """It ends at once, and leaves nothing; forgetting it again is no error."""
    token_id, text = desk.make()
    for _ in range(2):
        desk.tokens.forget(token_id)
        assert desk.tokens.named(text) is None
        assert desk.tokens.get(token_id) is None
        assert token_id not in {each.id for each in desk.tokens.list()}


@pytest.mark.parametrize("token_id", ["0" * 16, "", "no id", "\udcff"])
def test_what_does_not_exist_cannot_be_revoked(desk: Desk, token_id: str) -> None:
    """The error says what was asked for and where to look."""
    with pytest.raises(NotFound) as refused:
        desk.tokens.revoke(token_id, "bob")
    assert refused.value.hint
    assert desk.tokens.get(token_id) is None


def test_the_error_does_not_repeat_a_secret(desk: Desk) -> None:
    """Whoever names a token by its text is told so without it."""
    _, text = desk.make()
    with pytest.raises(NotFound) as refused:
        desk.tokens.revoke(text, "bob")
    assert secret_of(text) not in f"{refused.value.message}{refused.value.details}"


def test_of_two_who_revoke_at_once_one_has_done_it(real_bench: RedisBench) -> None:
    """All are told the same: when, and by whom."""
    desk = Desk(real_bench)
    token_id, _ = desk.make()
    together = threading.Barrier(8)

    def revoke(who: int) -> tokens.Token:
        together.wait()
        return desk.tokens.revoke(token_id, f"user {who}")

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(revoke, range(8)))
    assert told == [desk.tokens.get(token_id)] * 8


def test_tokens_stay_in_use_when_the_last_one_has_ended(desk: Desk) -> None:
    """Once a token was made, nobody is let in without one any more, whatever becomes of it."""
    assert not desk.tokens.in_use()
    token, _ = desk.tokens.create("ci", "agent", {}, None, "ann")
    assert desk.tokens.in_use()
    desk.tokens.revoke(token.id, "ann")
    assert desk.tokens.in_use()


def test_what_ended_long_ago_is_dropped_with_the_next_creation(desk: Desk, redis_bench: RedisBench) -> None:
    """After thirty days, counted from its end, so that a token that is old and live or ended lately stays."""
    live, live_text = desk.make()
    revoked, _ = desk.make()
    desk.tokens.revoke(revoked, "bob")
    expired, _ = desk.make(60)
    lately, _ = desk.make(2 * DAY_SECONDS)
    redis_bench.call("ZADD", keys.TOKENS, desk.store.clock(), "cut-short-creation")
    desk.store.ahead_ms = KEPT_MS + 61_000
    assert set(desk.listed()) == {live, revoked, expired, lately}, "looking drops nothing"
    new, _ = desk.make()
    assert desk.listed()[0] == new
    assert set(desk.listed()) == {live, lately, new}
    assert desk.tokens.get(revoked) is desk.tokens.get(expired) is None
    assert desk.tokens.named(live_text) is not None
    kept = {key.decode() for key in redis_bench.call("KEYS", "*")}
    assert kept == {keys.TOKENS, keys.TOKENS_IN_USE, *map(keys.token, (live, lately, new))}
    assert redis_bench.call("ZCARD", keys.TOKENS) == 3


# --- making one ----------------------------------------------------------------------------------------------------


def test_an_id_that_is_given_is_used_once(desk: Desk) -> None:
    """So that whoever has to ask again can find out that the token was made; the first one stays as it is."""
    token_id, text = desk.make(token_id="request-4711")
    desk.store.ahead_ms = 1000
    later, _ = desk.make()
    desk.store.ahead_ms = 2000
    with pytest.raises(Conflict) as refused:
        desk.make(token_id="request-4711")
    assert refused.value.details == {"id": "request-4711"}
    assert (token_id, desk.listed()) == ("request-4711", [later, "request-4711"])
    assert desk.tokens.named(text) is not None


@pytest.mark.parametrize("command", ["ZADD", "SET"])
def test_a_lost_reply_makes_no_second_token(desk: Desk, command: str) -> None:
    """The command is sent again, and what it finds is known for its own."""
    forgetful = Tokens(RedisStore(ForgetfulClient(desk.store.client, command), patience_seconds=30))
    token, text = forgetful.create("ci", "agent", {}, None, "alice", token_id="request-4711")
    assert desk.tokens.named(text) == token
    assert desk.listed() == ["request-4711"]


def test_a_lost_reply_revokes_all_the_same(desk: Desk) -> None:
    """The second try finds it done, by the same caller."""
    token_id, text = desk.make()
    forgetful = Tokens(RedisStore(ForgetfulClient(desk.store.client, "EVAL"), patience_seconds=30))
    assert forgetful.revoke(token_id, "bob").revoked_by == "bob"
    assert desk.tokens.named(text) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x" * 101},
        {"name": "two\nlines"},
        {"role": "root"},
        {"labels": {"": "blue"}},
        {"expires_in_seconds": 0},
        {"expires_in_seconds": -1},
        {"expires_in_seconds": float("nan")},
        {"expires_in_seconds": float("inf")},
        {"token_id": "short"},
        {"token_id": "x" * 65},
        {"token_id": "-starts-with-one"},
        {"token_id": "under_scores_in_it"},
        {"token_id": "line-end-after-it\n"},
    ],
    ids=str,
)
def test_what_cannot_be_used_makes_no_token(desk: Desk, wrong: dict[str, Any]) -> None:
    """Each value is looked at before anything is written."""
    right: dict[str, Any] = {"name": "ci", "role": "agent", "labels": {}, "expires_in_seconds": None, "by": "alice"}
    with pytest.raises(Invalid):
        desk.tokens.create(**right | wrong)
    assert desk.listed() == []


# --- what is kept --------------------------------------------------------------------------------------------------


def test_secrets_are_kept_nowhere(desk: Desk, redis_bench: RedisBench) -> None:
    """Neither in the store nor in what is known of a token; their hashes are in the store alone."""
    token_id, text = desk.make()
    document = redis_bench.call("GET", keys.token(token_id))
    digest = sha256(secret_of(text).encode()).hexdigest()
    assert json.loads(document)["secret_sha256"] == digest
    kept = document + b"".join(redis_bench.call("ZRANGE", keys.TOKENS, 0, -1))
    assert secret_of(text).encode() not in kept
    assert digest not in repr(desk.tokens.list())
    assert {key.decode() for key in redis_bench.call("KEYS", "*")} == {
        keys.TOKENS,
        keys.TOKENS_IN_USE,
        keys.token(token_id),
    }


def test_tokens_are_listed_newest_first(desk: Desk) -> None:
    """By when they were made."""
    made = []
    for _ in range(3):
        made.append(desk.make()[0])
        desk.store.ahead_ms += 1000
    assert desk.listed() == made[::-1]


def test_a_token_of_a_newer_version_is_not_guessed_at(desk: Desk, redis_bench: RedisBench) -> None:
    """It may say something of what the token must not do."""
    token_id, text = desk.make()
    document = json.loads(redis_bench.call("GET", keys.token(token_id)))
    redis_bench.call("SET", keys.token(token_id), json.dumps(document | {"schema": document["schema"] + 1}))
    with pytest.raises(StoredDataUnreadable, match="The stored token has schema version"):
        desk.tokens.named(text)


# --- the token of a state directory --------------------------------------------------------------------------------


def mode_of(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_state_directory_keeps_its_admin_token(desk: Desk, tmp_path: Path) -> None:
    """It is made with the directory, for the owner alone, and used again as long as it is live."""
    folder = tmp_path / "state"
    text = local_admin_token(desk.tokens, folder)
    token = desk.tokens.named(text)
    assert token is not None
    assert (token.name, token.role, token.labels, token.expires_at) == ("up", "admin", {}, 0)
    assert (folder / "token").read_text() == f"{text}\n"
    assert (mode_of(folder), mode_of(folder / "token")) == (0o700, 0o600)
    assert local_admin_token(desk.tokens, folder) == text
    assert desk.listed() == [token.id]


@pytest.mark.parametrize("before", ["revoked", "of another store", "an agent's", "no token", "empty", "binary"])
def test_a_token_file_that_is_of_no_use_is_replaced(desk: Desk, tmp_path: Path, before: str) -> None:
    """Whatever is in it."""
    file = tmp_path / "token"
    first = local_admin_token(desk.tokens, tmp_path)
    match before:
        case "revoked":
            desk.tokens.revoke(first.split("_")[1], "bob")
        case "of another store":
            desk.store.call("FLUSHALL")
        case "an agent's":
            file.write_text(desk.make()[1])
        case "no token":
            file.write_text("hello " * 100_000)
        case "empty":
            file.write_text("")
        case "binary":
            file.write_bytes(bytes(range(256)))
    second = local_admin_token(desk.tokens, tmp_path)
    found = desk.tokens.named(second)
    assert found is not None
    assert (found.role, second != first, file.read_text()) == ("admin", True, f"{second}\n")
    assert mode_of(file) == 0o600


def test_a_token_that_others_could_read_is_revoked(desk: Desk, tmp_path: Path) -> None:
    """Whoever has read it has nothing; the new one is private again."""
    first = local_admin_token(desk.tokens, tmp_path)
    (tmp_path / "token").chmod(0o644)
    second = local_admin_token(desk.tokens, tmp_path)
    assert desk.tokens.named(first) is None
    assert desk.tokens.named(second) is not None
    assert mode_of(tmp_path / "token") == 0o600


def test_a_token_file_is_private_from_its_first_moment(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the umask, also under the name that it has while it is written."""
    seen: list[int] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        seen.extend(mode_of(path) for path in tmp_path.iterdir())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    before = os.umask(0)
    try:
        local_admin_token(desk.tokens, tmp_path)
    finally:
        os.umask(before)
    assert seen == [0o600, 0o600]


def test_a_state_directory_that_cannot_be_used_is_named(desk: Desk, tmp_path: Path) -> None:
    """As by every command that needs it."""
    (tmp_path / "token").mkdir()
    with pytest.raises(Unavailable, match="token: Is a directory"):
        local_admin_token(desk.tokens, tmp_path)
