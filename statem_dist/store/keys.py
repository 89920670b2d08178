"""Names of everything that is stored in Redis.

All keys of a run, and the indices it lives in, carry the same hash tag ``{shard}``, so that one script may
touch them together on a Redis Cluster. The number of shards is part of the stored format and never changes.

=================================  ===========  ==============================================================
key                                type         holds
=================================  ===========  ==============================================================
``statem:{s}:run:ID``              hash         ``doc`` (the run), ``v`` (its version), ``ops`` (the last
                                                operation ids with their versions), ``lease:TOKEN`` (expiry of
                                                a claim, server ms, and the operation that made it),
                                                ``hints`` (dispatches of what is owed now)
``statem:{s}:events:ID``           stream       one entry per event; the entry id is ``VERSION-0``
``statem:{s}:log:ID:CHECK``        string       the longer output of a check, for a week
``statem:{s}:dynamic:ID:ENTRY``    hash         agent id to the dynamic checks it registered for the entry
                                                (under NUL and a file's name: when a file seen there was written)
``statem:{s}:stops:ID:SESSION``    string       how often a host's session was told to go on; for a week
``statem:{s}:receipt:ID:REQUEST``  string       what a request that had an id of its own led to; for a day
``statem:{s}:feed``                stream       the latest commits of all runs: run id, first and last event number
``statem:{s}:due``                 sorted set   run id, scored by when the reaper is to look at it (server ms)
``statem:{s}:runs``                sorted set   run id, scored by creation (ms)
``statem:{s}:status:STATUS``       sorted set   the same, one per status
``statem:{s}:label:KEY=VALUE``     sorted set   the same, one per label
``statem:{s}:barrier``             string       written before replicas are waited for
``statem:{s}:moved``               channel      ``ID VERSION`` after each commit
``statem:runbook:HASH``            string       a runbook that was started or registered; immutable
``statem:registered``              hash         hash of a registered runbook to who registered it, when, by which name
``statem:named``                   hash         name of a registered runbook to the hash of its current version
``statem:request:REQUEST``         string       the fingerprint of a request that creates a run; for a day
``statem:answer:REQUEST``          string       what a request about a sweep was answered; for a day
``statem:retention``               string       is there while a worker has just looked for runs whose time is over
``statem:store``                   string       which store this is: a random id, and since when (server ms)
``statem:losses``                  hash         what the store was found to have lost to how often that was
``statem:active``                  hash         scope (state directory, or that and a runbook) to run id
``statem:workers``                 sorted set   worker id, scored by when it is presumed gone (server ms)
``statem:worker:ID``               string       what a worker says of itself
``statem:leader:DUTY``             string       the process that does a duty for all; for seconds
``statem:tokens``                  sorted set   token id, scored by creation (ms)
``statem:tokens-in-use``           string       is there once a token was made
``statem:token:ID``                string       a token of the service (JSON) and the SHA-256 of its secret
``statem:{swp:ID}:PART``           see below    the parts of a sweep, in one slot
``statem:{limit:NAME}:held``       sorted set   holder of a shared limit, scored by the end of its lease (server ms)
``statem:{limit:NAME}:begun``      sorted set   a beginning, scored by when that was (server ms); of the last minute
``statem:sweeps``                  sorted set   sweep id, scored by creation (ms)
``statem:sweeps-open``             hash         id of a sweep that workers look after to its queue and priority
``statem:sweeps-served``           sorted set   sweep id, scored by when its last trial was taken, as a rising number
``statem:sweeps-moved``            channel      the id of a sweep after each change that its feed tells
``statem:sweep-of:FINGERPRINT``    string       id of the latest sweep that was submitted with that content
=================================  ===========  ==============================================================

No document or event of a run ever expires; a run that has ended is removed by `archive`, `prune` and retention alone.

===================  ===========  ============================================================================
part of a sweep      type         holds
===================  ===========  ============================================================================
``sweep``            hash         ``definition``, ``revision``, ``binding`` (what of it decides lanes), ``status``,
                                  ``token`` (claims so far), ``ops`` (the last operation ids with answers), ...
``plan``             hash         number to planned trial
``lanes``            set          lanes; a lane is JSON of the values that decide which limits bind a trial
``pending:LANE``     sorted set   numbers that wait, scored by themselves
``running``          sorted set   numbers under way, scored by the end of their lease (server ms)
``claims``           hash         number to the token of its claim
``holders``          hash         who claimed (one name per claim) to number
``slots``            hash         counter of a bound to how many are under way
``taken``            hash         number to who holds it and the counters that it takes, one per line
``outcomes``         hash         number to outcome, of those that have ended
``counts``           hash         state to how many trials are in it
``tries``            hash         number to its latest attempt
``attempts``         hash         ``NUMBER.ATTEMPT`` to what is known of it
``queued``           hash         number to when it became ready, of those that did after the sweep did (ms)
``holds``            hash         host to why it begins no trial, and until when that counts
``feed``             stream       the latest changes: number and state, or the status of the sweep
``withdrawn``        set          numbers of trials that the sweep plans no longer
===================  ===========  ============================================================================
"""

from __future__ import annotations

from zlib import crc32

SHARDS = 16
"""Number of hash tags; fixed for ever, because it is part of every key."""

STORE = "statem:store"
LOSSES = "statem:losses"
ACTIVE = "statem:active"
RETENTION = "statem:retention"
REGISTERED = "statem:registered"
NAMED = "statem:named"
WORKERS = "statem:workers"
TOKENS = "statem:tokens"
TOKENS_IN_USE = "statem:tokens-in-use"
SWEEPS = "statem:sweeps"
SWEEPS_OPEN = "statem:sweeps-open"
SWEEPS_SERVED = "statem:sweeps-served"
SWEEPS_MOVED = "statem:sweeps-moved"


def shard_of(run_id: str) -> int:
    """Return the shard in which a run lives."""
    return crc32(run_id.encode()) % SHARDS


def run(run_id: str) -> str:
    """Return the key of a run's hash."""
    return f"statem:{{{shard_of(run_id)}}}:run:{run_id}"


def events(run_id: str) -> str:
    """Return the key of a run's event stream."""
    return f"statem:{{{shard_of(run_id)}}}:events:{run_id}"


def log(run_id: str, transition: str, check: str) -> str:
    """Return the key of the longer output of one check."""
    return f"statem:{{{shard_of(run_id)}}}:log:{run_id}:{transition}.{check}"


def dynamic(run_id: str, entry_id: str) -> str:
    """Return the key of the dynamic checks of one entry."""
    return f"statem:{{{shard_of(run_id)}}}:dynamic:{run_id}:{entry_id}"


def stops(run_id: str, session: str) -> str:
    """Return the key of what a session of an agent host was told when it wanted to stop."""
    return f"statem:{{{shard_of(run_id)}}}:stops:{run_id}:{session}"


def receipt(run_id: str, request: str) -> str:
    """Return the key of what is kept of a request."""
    return f"statem:{{{shard_of(run_id)}}}:receipt:{run_id}:{request}"


def feed(shard: int) -> str:
    """Return the key of a shard's feed of commits."""
    return f"statem:{{{shard}}}:feed"


def request(request_id: str) -> str:
    """Return the key of what a request is that creates a run."""
    return f"statem:request:{request_id}"


def answer(request_id: str) -> str:
    """Return the key of what a request was answered."""
    return f"statem:answer:{request_id}"


def due(shard: int) -> str:
    """Return the key of a shard's due-index."""
    return f"statem:{{{shard}}}:due"


def runs(shard: int) -> str:
    """Return the key of a shard's list of runs."""
    return f"statem:{{{shard}}}:runs"


def status(shard: int, name: str) -> str:
    """Return the key of a shard's index of one status."""
    return f"statem:{{{shard}}}:status:{name}"


def label(shard: int, key: str, value: str) -> str:
    """Return the key of a shard's index of one label."""
    return f"statem:{{{shard}}}:label:{key}={value}"


def barrier(shard: int) -> str:
    """Return the key that is written before replicas are waited for."""
    return f"statem:{{{shard}}}:barrier"


def moved(shard: int) -> str:
    """Return the channel on which a shard's commits are announced."""
    return f"statem:{{{shard}}}:moved"


def runbook(digest: str) -> str:
    """Return the key of a registered runbook."""
    return f"statem:runbook:{digest}"


def worker(worker_id: str) -> str:
    """Return the key of a worker's self-description."""
    return f"statem:worker:{worker_id}"


def leader(duty: str) -> str:
    """Return the key of who does a duty for all."""
    return f"statem:leader:{duty}"


def token(token_id: str) -> str:
    """Return the key of a token."""
    return f"statem:token:{token_id}"


def sweep(sweep_id: str, part: str) -> str:
    """Return the key of a part of a sweep."""
    return f"statem:{{swp:{sweep_id}}}:{part}"


def sweep_of(fingerprint: str) -> str:
    """Return the key of the latest sweep with a content."""
    return f"statem:sweep-of:{fingerprint}"


def limit(name: str, part: str) -> str:
    """Return the key of a part (``held`` or ``begun``) of a limit that sweeps share."""
    return f"statem:{{limit:{name}}}:{part}"
