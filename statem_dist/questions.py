"""What a transition will ask somebody to confirm, and the answers that its caller gives in advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from statem_dist.errors import Invalid
from statem_dist.protocol.model import Confirmations


class Question(Struct, frozen=True):
    """A check that asks for a confirmation: its id in the plan, its name if it has one, and what it asks.

    ``operator`` says that only an operator's decision settles it.
    """

    check: str
    name: str
    text: str
    operator: bool


def confirmations_of(
    questions: Sequence[Question],
    confirm: Sequence[str],
    decline: Mapping[str, str],
    *,
    everything: bool,
) -> Confirmations:
    """Return the answers that a caller gives in advance, each check named by its id, its name or its text.

    Args:
        questions: what will be asked.
        confirm: checks that are confirmed.
        decline: checks that are declined, and why.
        everything: whether whatever else asks is confirmed.

    Raises:
        Invalid: a name is that of no check that asks.
    """

    def ids(wanted: str) -> list[str]:
        found = [each.check for each in questions if wanted in (each.check, each.name, each.text)]
        if not found:
            listed = "; ".join(f"{each.check} ({each.text})" for each in questions) or "none"
            raise Invalid(f"No check that asks is called {wanted!r}. Asking: {listed}")
        return found

    return Confirmations(
        everything=everything,
        checks=tuple(check for wanted in confirm for check in ids(wanted)),
        declined={check: reason for wanted, reason in decline.items() for check in ids(wanted)},
    )
