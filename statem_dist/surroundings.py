"""What Redis and the broker must be like for runs to be safe there: looked at before a service begins, and by `doctor`.

A finding of the level ``error`` is a reason not to begin. Operators of managed servers cannot always change or even ask
for a setting: what cannot be asked is said and passed over, and a risk that is accepted by name is a warning.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

from msgspec import Struct

from statem_dist.errors import StatemError, UnsafeSurroundings
from statem_dist.settings import Settings
from statem_dist.store.client import Refused, Unreachable, client_for
from statem_dist.store.redis_store import RedisStore

VERSION_MIN = (6, 2)

Level = Literal["ok", "warning", "error"]

logger = logging.getLogger(__name__)


class Finding(Struct, frozen=True):
    """One thing that was looked at."""

    level: Level
    what: str
    found: str
    fix: str = ""


def require_surroundings(store: RedisStore, settings: Settings) -> None:
    """Refuse to begin where runs would be lost, and log what is doubtful.

    Raises:
        UnsafeSurroundings: a setting with which runs would be lost; the message names it and the hint mends it.
        Unavailable: the store cannot be asked.
    """
    for finding in surroundings(store, settings):
        if finding.level == "error":
            raise UnsafeSurroundings(
                f"{finding.what}: {finding.found}.", hint=finding.fix, details={"what": finding.what}
            )
        if finding.level == "warning":
            logger.warning("%s: %s. %s", finding.what, finding.found, finding.fix)


def surroundings(store: RedisStore, settings: Settings) -> list[Finding]:
    """Look at the settings of the state store and of the broker.

    Raises:
        Unavailable: the store cannot be asked.
    """
    facts = info(store)
    findings = [_version(facts), *_role(facts, settings), _eviction(facts), *_persistence(store, facts, settings)]
    if settings.durability.replicas:
        findings.append(_replicas(store, facts, settings))
    findings += _broker(settings)
    return [_accepted(finding, settings) for finding in findings]


def info(store: RedisStore) -> dict[str, str]:
    """Return what the server says of itself."""
    reply: Any = store.call("INFO")
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _accepted(finding: Finding, settings: Settings) -> Finding:
    if finding.level == "error" and finding.what in settings.accepted_risks:
        return Finding("warning", finding.what, f"{finding.found} (accepted)", finding.fix)
    return finding


def _version(facts: dict[str, str]) -> Finding:
    product = "Valkey" if "valkey_version" in facts else "Redis"
    number = facts.get("valkey_version") or facts.get("redis_version", "?")
    # Valkey says as redis_version which Redis it stands in for.
    parts = facts.get("redis_version", "").split(".")
    if len(parts) >= 2 and all(part.isdigit() for part in parts[:2]) and tuple(map(int, parts[:2])) < VERSION_MIN:
        return Finding("error", "version", f"{product} {number} is too old", "Use Redis 6.2 or newer, or Valkey.")
    return Finding("ok", "version", f"{product} {number}")


def _role(facts: dict[str, str], settings: Settings) -> list[Finding]:
    if facts.get("cluster_enabled") == "1" and not settings.on_cluster:
        fix = "Use redis+cluster://HOST:PORT for the state, and STATEM_BROKER_URL for a broker that is no cluster."
        return [Finding("error", "cluster", "this Redis is a node of a Redis Cluster", fix)]
    if settings.on_cluster and settings.broker_url is None:
        fix = "Set STATEM_BROKER_URL to a Redis that is no cluster, or to RabbitMQ."
        return [Finding("error", "broker", "a Redis Cluster cannot be Celery's broker", fix)]
    if facts.get("role") in ("slave", "replica"):
        fix = "Point STATEM_REDIS_URL to the primary, or use redis+sentinel://."
        return [Finding("warning", "role", "this Redis is a replica for now, and takes no writes", fix)]
    return []


def _eviction(facts: dict[str, str]) -> Finding:
    policy = facts.get("maxmemory_policy")
    if policy is None:
        return Finding("warning", "eviction", "the server does not say its maxmemory-policy", "It must be noeviction.")
    if policy == "noeviction":
        return Finding("ok", "eviction", policy)
    fix = (
        "Set `maxmemory-policy noeviction`: this one deletes runs when memory is short. "
        "Or accept that: STATEM_ACCEPT_RISKS=eviction."
    )
    return Finding("error", "eviction", f"the maxmemory-policy is {policy}", fix)


def _persistence(store: RedisStore, facts: dict[str, str], settings: Settings) -> list[Finding]:
    wanted = settings.durability
    if facts.get("aof_enabled") != "1":
        fix = "Set `appendonly yes` in redis.conf: a restart would lose runs."
        strict = wanted.level in ("always", "replicas-fsynced")
        what = "durability" if strict else "persistence"
        return [Finding("error" if strict else "warning", what, "the append-only log is off", fix)]
    findings = [Finding("ok", "persistence", "the append-only log is on")]
    found = _configured(store, "appendfsync")
    if found is None:
        told = "the server does not say its appendfsync (CONFIG is not allowed)"
        return [*findings, Finding("warning", "durability", told, f"STATEM_DURABILITY asks for {wanted.appendfsync}.")]
    if found == "no" or (wanted.level == "always" and found != "always"):
        fix = f"Set `appendfsync {wanted.appendfsync}`"
        if settings.redis_url is None or settings.redis_url.startswith("unix:"):
            fix += " (an embedded server takes it over when it is started: statem-dist down)"
        level: Level = "error" if wanted.level == "always" else "warning"
        return [*findings, Finding(level, "durability", f"appendfsync is {found}", f"{fix}.")]
    return [*findings, Finding("ok", "durability", f"{wanted.level}, with appendfsync {found}")]


def _replicas(store: RedisStore, facts: dict[str, str], settings: Settings) -> Finding:
    wanted, there = settings.durability, int(facts.get("connected_slaves", "0"))
    if wanted.fsynced and not store.knows("WAITAOF"):
        fix = "Use Redis 7.2 or newer, or Valkey; or replicas:N, which goes without."
        return Finding("error", "durability", "this server has no WAITAOF", fix)
    found = f"{there} of {wanted.replicas} replicas are connected"
    if there < wanted.replicas:
        fix = "Bring the replicas back, or ask for fewer: no commit would be confirmed."
        return Finding("error", "durability", found, fix)
    return Finding("ok", "replicas", found)


def _configured(store: RedisStore, name: str) -> str | None:
    """Return a setting of the server; None if it may not be asked."""
    try:
        reply = store.client.call("CONFIG", "GET", name)
    except (Refused, Unreachable):
        return None
    return bytes(reply[1]).decode() if reply else None


def _broker(settings: Settings) -> list[Finding]:
    """Look at a broker that is another Redis. Of other brokers Celery itself says what is wrong."""
    url = settings.broker_url
    if url is None or not url.startswith(("redis://", "rediss://")):
        return []
    try:
        facts = info(RedisStore(client_for(url.partition("?")[0]), patience_seconds=settings.patience_seconds))
    except StatemError as error:
        return [Finding("warning", "broker", error.message.rstrip("."), error.hint)]
    if facts.get("cluster_enabled") == "1":
        fix = "Set STATEM_BROKER_URL to a Redis that is no cluster, or to RabbitMQ."
        return [Finding("error", "broker", "a Redis Cluster cannot be Celery's broker", fix)]
    return [Finding("ok", "broker", "Redis, no cluster; queues are consumed without acknowledgements")]
