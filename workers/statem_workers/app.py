"""The Celery application: which queues exist, and how they are consumed.

Queues are consumed without broker acknowledgements, but for those of RabbitMQ. The state knows what is owed, so that a
message is only a hint: acknowledging it would buy nothing, and costs most of a worker's throughput on Redis. What a
lost message costs is a few seconds, until the reaper sends another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from celery import Celery
from kombu import Queue

from statem_dist.errors import Unavailable
from statem_dist.publish import broker_unavailable
from statem_dist.settings import Settings
from statem_dist.store.topology import topology_of

CONNECT_TIMEOUT_SECONDS = 5.0


def make_app(broker_url: str, queues: Sequence[str], *, events: bool = False) -> Celery:
    """Return the application for one broker.

    Args:
        broker_url: kombu URL of the broker, or that of a Redis behind Sentinel as for the state.
        queues: names of the queues that this worker serves.
        events: whether to send Celery's own task events, which Flower shows; they cost throughput.

    Raises:
        Unavailable: a Redis Cluster, or a URL that cannot be understood.
    """
    topology = topology_of(broker_url)
    if topology is not None and not topology.service:
        raise Unavailable(
            "A Redis Cluster cannot be Celery's broker.",
            hint="Set STATEM_BROKER_URL to a Redis that is no cluster, or to RabbitMQ.",
        )
    url = broker_url if topology is None else topology.broker_url
    app = Celery("statem", broker=url, set_as_current=False, include=["statem_workers.tasks"])
    app.conf.update(
        task_queues=[Queue(name, routing_key=name, no_ack=not acknowledges(url)) for name in queues],
        task_default_queue=queues[0],
        task_create_missing_queues=False,
        task_ignore_result=True,
        result_backend=None,
        task_serializer="json",
        accept_content=["json"],
        task_acks_late=False,
        task_reject_on_worker_lost=False,
        worker_prefetch_multiplier=1,
        worker_eta_task_limit=100,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_send_task_events=events,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_pool_restarts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # A broker that is a replica for now, or cannot write its files, refuses to give messages away. That is no end.
        broker_channel_error_retry=True,
        broker_transport_options={
            "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "socket_keepalive": True,
            "health_check_interval": 10,
            **(topology.broker_options if topology else {}),
        },
    )
    return app


def acknowledges(broker_url: str) -> bool:
    """Return whether queues of a broker are consumed with acknowledgements: those of RabbitMQ, which without them would
    send a worker everything at once. A message is acknowledged when its work is begun, and is a hint there as well."""
    return broker_url.partition("://")[0] in ("amqp", "amqps", "pyamqp")


def broker_url_for(redis_url: str) -> str:
    """Return the kombu URL of the Redis that a redis-py URL names.

    They differ for unix sockets, in the scheme and in how the number of the database is given.
    """
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    query = urlencode([("virtual_host" if name == "db" else name, value) for name, value in parse_qsl(parts.query)])
    return f"redis+socket://{parts.path}" + (f"?{query}" if query else "")


def require_broker(app: Any, settings: Settings) -> None:
    """Fail at once, with the reason, where Celery would try for ever.

    Raises:
        Unavailable: the broker cannot be reached.
    """
    try:
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.2, timeout=settings.patience_seconds)
    except Exception as error:
        raise broker_unavailable(app.conf.broker_url, error) from error
