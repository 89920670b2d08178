"""A checker that cannot fail proves nothing: deliberate bugs, each of which has to be caught.

Each is put into a copy of the project, and the simulator (or, for what no simulated world depends on, the store
contract on a real server) has to find it there; the same worlds of the untouched project keep every law.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.mutations.catalogue import MUTATIONS, Mutation
from tests.mutations.trial import WORLDS_MAX, copy_of_the_project, hunt, judged_by_the_contract

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

IN_WORLDS = [mutation for mutation in MUTATIONS if mutation.catcher == "simulator"]
IN_CONTRACT = [mutation for mutation in MUTATIONS if mutation.catcher == "store contract"]


@pytest.mark.parametrize("mutation", IN_WORLDS, ids=lambda mutation: mutation.name)
def test_the_simulator_catches(mutation: Mutation, tmp_path: Path) -> None:
    """A law is broken in a world with the bug, and none in the same worlds without it."""
    mutated, untouched = tmp_path / "mutated", tmp_path / "untouched"
    for folder in (mutated, untouched):
        folder.mkdir()
    catch = hunt(copy_of_the_project(mutated, mutation), mutation, WORLDS_MAX)
    assert catch.seed is not None, f"nobody has noticed this: {mutation.why}"
    assert catch.law is not None
    assert mutation.told in catch.law
    same = hunt(copy_of_the_project(untouched), mutation, catch.seed - mutation.seed + 1)
    assert same.seed is None, f"seed {same.seed} breaks a law without the bug, too: {same.law}"


@pytest.mark.parametrize("mutation", IN_CONTRACT, ids=lambda mutation: mutation.name)
def test_the_store_contract_catches(mutation: Mutation, tmp_path: Path) -> None:
    """A test of the store contract fails on a real server with the bug."""
    found = judged_by_the_contract(copy_of_the_project(tmp_path, mutation))
    assert found.returncode == 1, found.stdout
    assert mutation.told in found.stdout, found.stdout


def test_the_store_contract_passes_untouched(tmp_path: Path) -> None:
    """The same tests pass in a copy without a bug."""
    found = judged_by_the_contract(copy_of_the_project(tmp_path))
    assert found.returncode == 0, found.stdout


def test_a_patch_that_fits_no_more_says_so(tmp_path: Path) -> None:
    """Where the code has changed, the mutation is to be written anew, and a sentence says which."""
    outdated = replace(MUTATIONS[0], old="this stands nowhere")
    with pytest.raises(LookupError, match=f"{outdated.name} has to be written anew"):
        copy_of_the_project(tmp_path, outdated)


def test_mutations_are_told_apart() -> None:
    """Each has a name of its own, and there are enough of them."""
    names = {mutation.name for mutation in MUTATIONS}
    assert len(names) == len(MUTATIONS) >= 12
