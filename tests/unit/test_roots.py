"""Workspace roots: a path counts by where it leads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from statem_dist.roots import outside_roots, within_roots

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A root with a folder and links in it, a neighbour whose name begins alike, and a link to the root."""
    (tmp_path / "root" / "inner").mkdir(parents=True)
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root" / "out").symlink_to(tmp_path / "root-2")
    (tmp_path / "root" / "in").symlink_to("inner")
    (tmp_path / "root" / "up").symlink_to("../root/../root-2")
    (tmp_path / "root" / "circle").symlink_to("circle")
    (tmp_path / "alias").symlink_to("root")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("root", True),
        ("root/", True),
        ("root/inner", True),
        ("root/in", True),
        ("root/not/there/yet", True),
        ("root/inner/..", True),
        ("root/out/../root/inner", True),
        ("alias/inner", True),
        ("root/circle", True),
        ("root/..", False),
        ("root/in/../..", False),
        ("root/out", False),
        ("root/out/x", False),
        ("root/up", False),
        ("root/inner/../../root-2", False),
        ("root-2", False),
        (".", False),
    ],
)
def test_a_path_counts_by_where_it_leads(folder: Path, path: str, inside: bool) -> None:
    """Links and ``..`` are followed as the system does, a common beginning of names is not enough."""
    given = f"{folder}/{path}"
    assert within_roots(given, [str(folder / "root")]) is inside
    assert within_roots(given, ["/nowhere", str(folder / "alias")]) is inside


def test_everything_is_below_the_root_of_all() -> None:
    """``/`` as a root allows everything, and no roots at all allow nothing."""
    assert within_roots("/etc", ["/"])
    assert not within_roots("/etc", [])


def test_the_complaint_names_path_destination_and_roots(folder: Path) -> None:
    """Whoever reads it can see which link leads out."""
    path = str(folder / "root" / "out")
    told = outside_roots("the cwd", path, [str(folder / "root"), "/srv"])
    assert told == (
        f"the cwd {path} leads to {folder}/root-2, which is not below a workspace root (roots: {folder}/root, /srv)"
    )
    assert outside_roots("the file", "/etc/passwd", ["/srv"]) == (
        "the file /etc/passwd is not below a workspace root (roots: /srv)"
    )


def test_the_rule_is_light() -> None:
    """A service asks it with every request: it brings nothing but the standard library."""
    program = "import sys, statem_dist.roots; print(*(set(sys.modules) - set(sys.stdlib_module_names)))"
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}"
    done = subprocess.run([sys.executable, "-ISc", program], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert loaded - {"__main__"} == {"statem_dist", "statem_dist.roots"}
