"""What the commands of one user remember about the runs of a service: small files in the local state directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from statem_dist.embedded.place import Place
from statem_dist.files import write_whole


class Notes:
    """A file of words by key, for its owner alone. The newest ``kept`` of them stay.

    Args:
        state_dir: the state directory; it is made when something is noted.
        name: the name of the file.
        kept: how many are kept.
    """

    def __init__(self, state_dir: Path, name: str, kept: int) -> None:
        self._place = Place.of(state_dir)
        self._file = Path(self._place.state_dir) / name
        self._kept = kept

    def get(self, key: str) -> str | None:
        """Return what was noted under a key.

        Raises:
            Unavailable: the state directory cannot be used.
        """
        return self._all().get(key)

    def put(self, noted: dict[str, str]) -> None:
        """Note something under each key, in place of what was there.

        Raises:
            Unavailable: the state directory cannot be used.
        """
        with self._place.explaining():
            os.makedirs(self._place.state_dir, mode=0o700, exist_ok=True)
            lock = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # What is noted anew goes to the end, so that the oldest is dropped first.
                others = {key: value for key, value in self._all().items() if key not in noted}
                newest = [*others.items(), *noted.items()][-self._kept :]
                write_whole(self._file, msgspec.json.encode(dict(newest)).decode() + "\n", mode=0o600)
            finally:
                os.close(lock)

    def _all(self) -> dict[str, str]:
        with self._place.explaining():
            try:
                return msgspec.json.decode(self._file.read_bytes(), type=dict[str, str])
            except FileNotFoundError:
                return {}
            except msgspec.DecodeError:
                # Nothing is lost with it but which run was meant last.
                return {}
