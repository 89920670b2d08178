"""Task messages that are made without Celery, compared with those that Celery makes itself.

Whatever a new version of Celery or kombu adds to its messages, drops or renames fails here, to be looked at.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from statem_dist.dispatch import TASK_NAME, DispatchOthers, NoDispatch, PushWithCommit, task_message
from statem_dist.protocol.progress import Batch
from statem_dist.publish import PublishAfterCommit
from statem_dist.store.redis_client import connect
from statem_workers.app import broker_url_for, make_app
from tests.support.servers import RealServer, real_server

QUEUE = "checks"
BATCH = Batch(run="r", transition="t1", checks=("in_hook.0", "in_hook.1"), queue=QUEUE)
ARGUMENTS = ["r", "t1", "in_hook.0"]

LEFT_OUT = {
    "headers.group_index",
    "headers.replaced_task_nesting",
    "headers.shadow",
    "headers.stamped_headers",
    "headers.stamps",
}
"""What Celery sends of features that a task without canvas does not use; its workers take their absence for that."""

FREE = {
    "headers.argsrepr",
    "headers.id",
    "headers.origin",
    "headers.root_id",
    "properties.correlation_id",
    "properties.delivery_tag",
    "properties.reply_to",
}
"""Fields whose values differ from message to message, or that are for people to read."""


@pytest.fixture(scope="module")
def broker() -> Iterator[RealServer]:
    """A real server."""
    with real_server() as running:
        yield running


@pytest.fixture
def app(broker: RealServer) -> Celery:
    """The application of a worker on that server."""
    with connect(broker.url) as client:
        client.flushall()
    app = make_app(broker_url_for(broker.url), [QUEUE])
    app.loader.import_default_modules()
    return app


def fields(message: bytes) -> dict[str, Any]:
    """Return a message as one flat mapping, its body decoded."""
    document: dict[str, Any] = json.loads(message)
    document["body"] = json.loads(b64decode(document["body"]))
    return dict(_flat(document, ""))


def _flat(value: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, member in value.items():
        if isinstance(member, dict) and member:
            yield from _flat(member, f"{prefix}{name}.")
        else:
            yield prefix + name, member


def sent(url: str) -> bytes:
    """Return the one message that lies in the queue."""
    with connect(url) as client:
        messages = client.execute_command("LRANGE", QUEUE, 0, -1)
    assert len(messages) == 1
    return bytes(messages[0])


@pytest.mark.parametrize("way", ["send_task", "apply_async"])
def test_our_message_is_what_celery_would_send(broker: RealServer, app: Celery, way: str) -> None:
    """The same keys at each level, the same values where they are not free, and the same types where they are."""
    if way == "send_task":
        app.send_task(TASK_NAME, args=ARGUMENTS, queue=QUEUE, ignore_result=True)
    else:
        app.tasks[TASK_NAME].apply_async(tuple(ARGUMENTS), queue=QUEUE)
    theirs, ours = fields(sent(broker.url)), fields(task_message(BATCH))
    assert set(theirs) - set(ours) == LEFT_OUT
    assert set(ours) - set(theirs) == set()
    assert {name: value for name, value in ours.items() if name not in FREE} == {
        name: value for name, value in theirs.items() if name not in FREE | LEFT_OUT
    }
    assert {name: type(ours[name]) for name in FREE} == {name: type(theirs[name]) for name in FREE}
    assert all(not theirs[name] for name in LEFT_OUT), "what is left out is empty"


@pytest.mark.parametrize(
    ("redis_url", "broker_url"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host:6379/3?socket_timeout=2", "redis://:secret@host:6379/3?socket_timeout=2"),
        ("rediss://host/1", "rediss://host/1"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock"),
        ("unix:///run/redis.sock?db=2", "redis+socket:///run/redis.sock?virtual_host=2"),
        ("unix:///run/redis.sock?db=0", "redis+socket:///run/redis.sock?virtual_host=0"),
        ("unix:///run/a%20b.sock?db=2", "redis+socket:///run/a%20b.sock?virtual_host=2"),
    ],
)
def test_celery_is_given_the_redis_of_the_state(redis_url: str, broker_url: str) -> None:
    """The two libraries name a unix socket and its database differently; all else is the same."""
    assert broker_url_for(redis_url) == broker_url


@pytest.mark.parametrize("database", [0, 3])
def test_messages_lie_in_the_database_of_the_state(broker: RealServer, database: int) -> None:
    """What Celery sends is found where the state is, also when that is not the first database of a server."""
    state_url = f"{broker.url}?db={database}"
    with connect(state_url) as client:
        client.flushall()
    app = make_app(broker_url_for(state_url), [QUEUE])
    app.send_task(TASK_NAME, args=ARGUMENTS, queue=QUEUE, ignore_result=True)
    assert fields(sent(state_url))["body"][0] == ARGUMENTS


def test_ids_agree_within_a_message() -> None:
    """A message is its own root, is correlated by its task id, and shares no id with another."""
    first, second = fields(task_message(BATCH)), fields(task_message(BATCH))
    assert first["headers.id"] == first["headers.root_id"] == first["properties.correlation_id"]
    for name in ("headers.id", "properties.delivery_tag"):
        assert first[name] != second[name]


def test_kombu_decodes_our_message(broker: RealServer, app: Celery) -> None:
    """What a worker gets out of its queue is the task, and the ids that it is called with."""
    with connect(broker.url) as client:
        client.execute_command("LPUSH", QUEUE, task_message(BATCH))
    with app.connection_for_read() as connection:
        message = Queue(QUEUE).bind(connection.default_channel).get(no_ack=True, accept=["json"])
        assert message is not None
        arguments, keywords, embedded = message.decode()
    assert (arguments, keywords) == (ARGUMENTS, {})
    assert set(embedded) == {"callbacks", "errbacks", "chain", "chord"}
    assert message.headers["task"] in app.tasks


def test_a_broker_of_its_own_gets_an_equivalent_message(broker: RealServer, app: Celery) -> None:
    """On a broker that the commit does not reach, kombu publishes the same message, into a database of its own here."""
    dispatcher = PublishAfterCommit(f"{broker.broker_url}?virtual_host=1")
    assert dispatcher.pushes([BATCH]) == ()
    dispatcher.send([BATCH])
    published, pushed = fields(sent(f"{broker.url}?db=1")), fields(task_message(BATCH))
    assert set(pushed) - set(published) == {"properties.reply_to"}
    assert set(published) - set(pushed) == set()
    assert {name: value for name, value in published.items() if name not in FREE} == {
        name: value for name, value in pushed.items() if name not in FREE
    }


def test_an_unreachable_broker_is_left_to_the_reaper(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A message that cannot be published is no error of the commit: it is logged, and the next one is tried anew."""
    dispatcher = PublishAfterCommit(f"redis+socket://{tmp_path}/nobody.sock")
    dispatcher.send([BATCH])
    assert "the reaper will send again" in caplog.text


def test_a_batch_is_pushed_to_its_queue() -> None:
    """With the commit goes one message per batch, which names the first check of the batch."""
    other = Batch(run="r", transition="t1", checks=("in_hook.2",), queue="llm")
    pushes = PushWithCommit().pushes([BATCH, other])
    assert [push.queue for push in pushes] == [QUEUE, "llm"]
    assert [fields(push.message)["body"][0][2] for push in pushes] == ["in_hook.0", "in_hook.2"]


def test_whoever_executes_itself_sends_nothing() -> None:
    """The dispatcher of a caller that does the work itself is silent."""
    assert NoDispatch().pushes([BATCH]) == ()


def test_only_the_work_of_others_is_sent() -> None:
    """Whoever executes one queue itself leaves the other queues to workers."""
    review = Batch(run="r", transition="t1", checks=("in_hook.2",), queue="llm")
    pushes = DispatchOthers(PushWithCommit(), ("llm",)).pushes([BATCH, review])
    assert [push.queue for push in pushes] == [QUEUE]
