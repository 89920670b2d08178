"""What users install: the wheel (built from the sdist, which proves the sdist complete), its metadata, and the lock."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import statem_dist

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"


class Distributions(NamedTuple):
    """The names of the files in both distributions, and the wheel's metadata."""

    sdist_files: frozenset[str]
    wheel_files: frozenset[str]
    metadata: Metadata


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build the sdist from the checkout and the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr

    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        sdist_files = frozenset(name.partition("/")[2] for name in sdist.getnames())
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel_files = frozenset(wheel.namelist())
        (metadata_file,) = (name for name in wheel_files if name.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(wheel.read(metadata_file))
    return Distributions(sdist_files, wheel_files, metadata)


def source_files(*folders: str) -> set[str]:
    """Return the paths of all source files under these folders of the checkout, relative to it."""
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".lua", ".yaml", ".j2", ".css", ".js"}
    }


def locked_versions() -> dict[str, Version]:
    """Return the version of every package in the lock, by its normalised name."""
    pins = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in pins}


def declared_requirements() -> list[Requirement]:
    """Return the requirements of the project and of all its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    return [Requirement(text) for text in texts]


def test_wheel_has_every_source_file_of_the_packages(distributions: Distributions) -> None:
    """Python and Lua files, and the parts of pages, are in the wheel, under the names they are imported or read by."""
    library = source_files("statem_dist")
    workers = {path.removeprefix("workers/") for path in source_files("workers")}
    assert library | workers <= distributions.wheel_files
    assert any(name.startswith("statem_dist/store/lua/") for name in distributions.wheel_files)
    assert any(name.startswith("statem_workers/") for name in distributions.wheel_files)


def test_wheel_has_nothing_else_at_its_top(distributions: Distributions) -> None:
    """No tests, and no package named ``workers`` or ``api``, which a user's own folder of that name would shadow."""
    top = {name.partition("/")[0] for name in distributions.wheel_files}
    assert {name for name in top if not name.endswith(".dist-info")} <= {"statem_dist", "statem_workers", "statem_api"}


def test_sdist_has_what_a_packager_needs(distributions: Distributions) -> None:
    """Tests, runbooks and deployment files come with the sources."""
    assert source_files("tests", "runbooks", "deploy") <= distributions.sdist_files
    assert {"LICENSE", "Makefile", "README.md", "requirements.lock"} <= distributions.sdist_files


@pytest.mark.parametrize("name", ["billiard", "celery", "kombu", "redis"])
def test_metadata_bounds_the_broker_stack_on_both_sides(distributions: Distributions, name: str) -> None:
    """A new major version of the broker stack reaches users with a release of ours, never by itself."""
    requirements = distributions.metadata.requires_dist or []
    (requirement,) = (each for each in requirements if each.name == name and each.marker is None)
    assert {specifier.operator for specifier in requirement.specifier} == {">=", "<"}


def test_version_is_the_one_the_library_reports(distributions: Distributions) -> None:
    """``statem_dist.__version__`` and the metadata of the wheel say the same."""
    assert str(distributions.metadata.version) == statem_dist.__version__


@pytest.mark.parametrize("requirement", declared_requirements(), ids=lambda requirement: requirement.name)
def test_lock_satisfies(requirement: Requirement) -> None:
    """Every declared requirement is locked to a version within its bounds; ``make lock`` renews the lock."""
    assert locked_versions()[canonicalize_name(requirement.name)] in requirement.specifier


def test_lock_names_packages_and_versions_only() -> None:
    """The lock holds no address of an index and no path, so that it installs anywhere."""
    lines = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;]+( ; .+)?", line)] == []
