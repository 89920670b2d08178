"""What has to be right for runs to be safe, looked at one by one, with the fix for what is not."""

from __future__ import annotations

import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from statem_dist.errors import StatemError, Unavailable
from statem_dist.load import queue_loads
from statem_dist.roster import Roster
from statem_dist.settings import Settings
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore
from statem_dist.surroundings import Finding, Level, surroundings

if TYPE_CHECKING:
    from statem_dist.client.address import Address

DISK_BYTES_MIN = 200 * 1024 * 1024
CLOCK_SKEW_MS_MAX = 2000


def diagnose(settings: Settings) -> list[Finding]:
    """Look at this installation, its state store and its workers."""
    findings = [_versions(), _disk(settings)]
    if settings.sandbox is not None:
        findings.append(_sandbox(settings))
    try:
        url = settings.redis_url or _embedded_url(settings)
        store = RedisStore(client_for(url), patience_seconds=settings.patience_seconds)
        findings += _store_findings(store, settings)
        findings += _worker_findings(store, settings)
    except Unavailable as error:
        findings.append(Finding("error", "state store", error.message, error.hint))
    return findings


def diagnose_service(settings: Settings, address: Address) -> list[Finding]:
    """Look at this installation, and at a service as its callers see it: whether it is ready, and who one is there."""
    from statem_dist.client.stdlib import StdlibTransport
    from statem_dist.client.sync import Client

    findings = [_versions()]
    patience = settings.patience_seconds
    with Client(address.url, address.token, patience_seconds=patience, transport=StdlibTransport) as client:
        try:
            for each in client.readiness().checks:
                level: Level = "ok" if each["ok"] else "error"
                findings.append(Finding(level, f"service: {each['check']}", each["found"], each.get("fix", "")))
            me = client.whoami()
            reach = ", ".join(f"{key}={value}" for key, value in me.labels.items())
            runs = f"only runs with {reach}" if reach else "all runs"
            how = f"token {me.token}" if me.token else "without a token, which is let in from this host"
            findings.append(Finding("ok", "caller", f"{me.name} ({me.role}, {runs}; {how})"))
        except StatemError as error:
            findings.append(Finding("error", f"service {address.url}", error.message, error.hint))
    return findings


def _versions() -> Finding:
    names = ("statem-dist", "celery", "kombu", "redis", "msgspec")
    found = ", ".join(f"{name} {_version(name)}" for name in names)
    return Finding("ok", "versions", f"Python {sys.version.split()[0]}, {found}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _disk(settings: Settings) -> Finding:
    place = next(path for path in (settings.state_dir, *settings.state_dir.parents) if path.exists())
    free = shutil.disk_usage(place).free
    found = f"{free // 1024**2} MiB free at {place}"
    if free < DISK_BYTES_MIN:
        return Finding("error", "disk", found, "Free space, or choose another --state-dir.")
    return Finding("ok", "disk", found)


def _sandbox(settings: Settings) -> Finding:
    from statem_dist.checks.confinement import BWRAP_HINT, why_no_sandbox

    why = why_no_sandbox(settings.sandbox_binds)
    return Finding("error", "sandbox", why, BWRAP_HINT) if why else Finding("ok", "sandbox", "bwrap can make one")


def _embedded_url(settings: Settings) -> str:
    from statem_dist.embedded.server import ensure

    return ensure(
        settings.state_dir, idle_stop_seconds=settings.idle_stop_seconds, appendfsync=settings.durability.appendfsync
    ).redis_url


def _store_findings(store: RedisStore, settings: Settings) -> list[Finding]:
    before = time.time()
    seconds, microseconds = store.call("TIME")
    skew_ms = round(1000 * (int(seconds) + int(microseconds) / 1e6 - (before + time.time()) / 2))
    # A run that cannot exist exercises a real script, which PING does not.
    store.load("doctor")
    identity = store.identity()
    return [
        Finding("ok", "state store", f"answers, and runs our scripts; it is {identity.id}"),
        Finding("ok", "clock", f"differs by {skew_ms} ms")
        if abs(skew_ms) <= CLOCK_SKEW_MS_MAX
        else Finding("warning", "clock", f"differs by {skew_ms} ms", "Leases use the server's clock; set this one."),
        *surroundings(store, settings),
        *_losses(store),
    ]


def _losses(store: RedisStore) -> list[Finding]:
    """Tell what the store was found to have lost; there is nothing to mend, but something to be known."""
    losses = store.losses()
    if not losses:
        return []
    told = ", ".join(f"{what}: {count}" for what, count in sorted(losses.items()))
    fix = "A failover or an older file has taken writes back; STATEM_DURABILITY=replicas:N makes that less likely."
    return [Finding("warning", "lost writes", told, fix)]


def _worker_findings(store: RedisStore, settings: Settings) -> list[Finding]:
    present = Roster(store).present()
    if present:
        listed = "; ".join(f"{card.id} ({', '.join(card.queues)}; {card.slots} slots)" for card in present)
        findings = [Finding("ok", "workers", listed)]
    elif settings.embedded:
        findings = [Finding("ok", "workers", "none; commands execute checks themselves")]
    else:
        findings = [Finding("warning", "workers", "none", "Start one: statem-dist worker")]
    for load in queue_loads(store, settings, present):
        if load.waiting:
            level: Level = "ok" if load.workers else "warning"
            fix = "" if load.workers else f"Nobody serves it: statem-dist worker -Q {load.queue}"
            findings.append(Finding(level, f"queue {load.queue}", f"{load.waiting} messages wait", fix))
    overdue = store.counts(())["due"]
    findings.append(Finding("ok", "open work", f"{overdue} runs have a transition in flight"))
    return findings
