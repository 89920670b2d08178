"""Where the files of a state directory's server are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from statem_dist.embedded.place import SOCKET_PATH_BYTES_MAX, Place
from statem_dist.errors import Unavailable


@pytest.fixture
def long_place(tmp_path: Path) -> Iterator[Place]:
    """The place of a state directory whose path is too long for a socket; its short directory is removed."""
    place = Place.of(tmp_path / ("deep" * 30))
    assert place.short_dir is not None
    yield place
    if os.path.islink(place.short_dir) or os.path.isfile(place.short_dir):
        os.unlink(place.short_dir)
    else:
        shutil.rmtree(place.short_dir, ignore_errors=True)


def test_the_socket_is_in_the_state_directory() -> None:
    """A path of ordinary length needs no detour."""
    place = Place.of(Path("/home/me/project/.statem"))
    assert place.socket == "/home/me/project/.statem/redis.sock"
    assert place.short_dir is None


def test_a_symbolic_link_to_the_directory_leads_to_the_same_place(tmp_path: Path) -> None:
    """Two names of one directory share one server."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert Place.of(tmp_path / "link") == Place.of(tmp_path / "real")


def test_a_long_path_gets_a_short_socket(long_place: Place) -> None:
    """The short path fits, is the same each time, depends on the directory, and holds a private directory."""
    assert len(os.fsencode(long_place.socket)) <= SOCKET_PATH_BYTES_MAX
    assert Place.of(Path(long_place.state_dir)) == long_place
    assert Place.of(Path(long_place.state_dir + "x")).socket != long_place.socket
    long_place.create()
    assert long_place.short_dir is not None
    assert os.stat(long_place.short_dir).st_mode & 0o777 == 0o700


def test_the_length_is_counted_in_bytes() -> None:
    """Sixty umlauts are 120 bytes."""
    assert Place.of(Path("/" + "ü" * 60)).short_dir is not None


def test_a_short_directory_open_to_others_is_refused(long_place: Place) -> None:
    """Somebody else could listen at a socket in it."""
    assert long_place.short_dir is not None
    os.mkdir(long_place.short_dir)
    os.chmod(long_place.short_dir, 0o755)
    with pytest.raises(Unavailable, match="not a private directory"):
        long_place.create()


def test_a_short_directory_that_is_a_link_is_refused(long_place: Place, tmp_path: Path) -> None:
    """A link may lead into somebody else's hands, however private its target looks now."""
    assert long_place.short_dir is not None
    (tmp_path / "target").mkdir(mode=0o700)
    os.symlink(tmp_path / "target", long_place.short_dir)
    with pytest.raises(Unavailable, match="not a private directory") as caught:
        long_place.require_private_socket()
    assert long_place.short_dir in caught.value.hint


def test_a_long_log_is_set_aside(tmp_path: Path) -> None:
    """A log of more than a megabyte starts over, one older log is kept, and a short one is left alone."""
    place = Place.of(tmp_path)
    log = Path(place.log)
    log.write_bytes(b"x" * 100)
    place.rotate_log()
    assert log.exists()
    log.write_bytes(b"x" * (1 << 20) + b"y")
    place.rotate_log()
    assert not log.exists()
    assert Path(place.log + ".1").stat().st_size == (1 << 20) + 1
