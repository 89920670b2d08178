"""Between values and the bytes that are stored. A document of another schema version is refused, never guessed."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from statem_dist.errors import StoredDataUnreadable
from statem_dist.protocol.events import Event
from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import SCHEMA, Run

Document = TypeVar("Document")

_encoder = msgspec.json.Encoder()
_run_decoder = msgspec.json.Decoder(Run)
_event_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class _Envelope(msgspec.Struct):
    schema: int


class StoredRunbook(msgspec.Struct, frozen=True):
    """A registered runbook: what it says, and the text that it was read from."""

    runbook: Runbook
    text: str
    source: str
    schema: int = SCHEMA


class Receipt(msgspec.Struct, frozen=True):
    """What is kept of a request that its caller gave an id of its own, so that a repetition is known for what it is.

    ``fingerprint`` stands for what was asked, and ``transition`` is the run's latest one as the request left it
    (empty if there was none). It is written by the commit that the request led to.
    """

    request: str
    fingerprint: str
    transition: str = ""


_receipt_decoder = msgspec.json.Decoder(Receipt)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_runbook_decoder = msgspec.json.Decoder(StoredRunbook)


def encode_run(run: Run) -> bytes:
    """Return the stored form of a run."""
    return _encoder.encode(run)


def decode_run(document: bytes) -> Run:
    """Return the run of a stored document.

    Raises:
        StoredDataUnreadable: another schema version, or a damaged document.
    """
    return decode_document(document, _run_decoder, "run")


def encode_event(event: Event) -> bytes:
    """Return the stored form of an event."""
    return _encoder.encode(event)


def decode_event(document: bytes) -> Event:
    """Return the event of a stream entry.

    Raises:
        StoredDataUnreadable: an event of a newer version, or a damaged entry.
    """
    try:
        return _event_decoder.decode(document)
    except msgspec.DecodeError as error:
        raise _unreadable("event", error) from error


def encode_receipt(receipt: Receipt) -> bytes:
    """Return the stored form of a receipt."""
    return _encoder.encode(receipt)


def decode_receipt(document: bytes) -> Receipt:
    """Return a receipt.

    Raises:
        StoredDataUnreadable: a damaged document.
    """
    try:
        return _receipt_decoder.decode(document)
    except msgspec.DecodeError as error:
        raise _unreadable("receipt", error) from error


def encode_runbook(stored: StoredRunbook) -> bytes:
    """Return the stored form of a registered runbook."""
    return _encoder.encode(stored)


def decode_runbook(document: bytes) -> StoredRunbook:
    """Return a registered runbook.

    Raises:
        StoredDataUnreadable: another schema version, or a damaged document.
    """
    return decode_document(document, _runbook_decoder, "runbook")


def decode_document(document: bytes, decoder: msgspec.json.Decoder[Document], what: str) -> Document:
    """Return the value of a stored document.

    Args:
        document: what is stored; its ``schema`` says which version of statem-dist wrote it.
        decoder: reads documents of this version.
        what: what it is a document of, for the error.

    Raises:
        StoredDataUnreadable: another schema version, or a damaged document.
    """
    _check_schema(document, what)
    try:
        return decoder.decode(document)
    except msgspec.DecodeError as error:
        raise _unreadable(what, error) from error


def _check_schema(document: bytes, what: str) -> None:
    try:
        schema = _envelope_decoder.decode(document).schema
    except msgspec.DecodeError as error:
        raise _unreadable(what, error) from error
    if schema != SCHEMA:
        raise StoredDataUnreadable(
            f"The stored {what} has schema version {schema}; this version of statem-dist reads {SCHEMA}.",
            hint="Use the version of statem-dist that wrote it, or a newer one.",
            details={"schema": schema, "supported": SCHEMA},
        )


def _unreadable(what: str, error: Exception) -> StoredDataUnreadable:
    return StoredDataUnreadable(
        f"The stored {what} cannot be read: {error}.",
        hint="It was written by a newer version of statem-dist, or it is damaged.",
    )
