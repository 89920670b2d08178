"""The token by which the programs of this user reach the service that ``up`` runs for them."""

from __future__ import annotations

import os
from pathlib import Path

from statem_dist.embedded.place import Place
from statem_dist.files import write_whole
from statem_dist.identity import this_process, user_name
from statem_dist.tokens import TEXT_LENGTH_MAX, Tokens

NAME = "up"
"""What the token is called."""


def local_admin_token(tokens: Tokens, state_dir: Path) -> str:
    """Return the text of the admin token of a state directory, which is kept there for its owner alone.

    One that is not live any more, or that others could have read, is replaced; the latter is revoked as well.

    Raises:
        Unavailable: the state directory or the state store cannot be used.
    """
    place = Place.of(state_dir)
    with place.explaining():
        os.makedirs(place.state_dir, mode=0o700, exist_ok=True)
        text, private = _kept(place.token_file)
    token = tokens.named(text)
    if token is not None and token.role == "admin":
        if private:
            return text
        tokens.revoke(token.id, user_name())
    _, text = tokens.create(NAME, "admin", {}, None, user_name())
    with place.explaining():
        write_whole(Path(place.token_file), f"{text}\n", mode=0o600)
    return text


def announce_service(file: Path, url: str) -> None:
    """Say in a file where the service of this process listens, for the commands of this user alone."""
    write_whole(file, f"{url} {this_process('api')}\n", mode=0o600)


def _kept(path: str) -> tuple[str, bool]:
    """Return what a file holds, nothing for one that is not there, and whether its owner alone may read it."""
    try:
        with open(path, "rb") as file:
            private = not os.fstat(file.fileno()).st_mode & 0o077
            return file.read(TEXT_LENGTH_MAX + 2).decode(errors="replace").strip(), private
    except FileNotFoundError:
        return "", True
