"""Workspaces: what is in them at the beginning, with real repositories; and that they go away."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from statem_dist.sweep import workspaces
from statem_dist.sweep.model import Cell, Definition, Workspace
from statem_dist.sweep.workspaces import WorkspaceFailed, digest_of, discard, prepare, ref_of
from tests.support.programs import alive, eventually


def definition(workspace: Workspace) -> Definition:
    """Return a sweep of which only the workspace matters."""
    return Definition(
        name="x",
        file="/x.sweep.yaml",
        folder="/",
        runbook="h1",
        runbook_path="/x.yaml",
        axes=(),
        listed=(),
        success=("done",),
        workspace=workspace,
    )


def git(folder: Path, *arguments: str) -> str:
    """Run git as somebody who has set up nothing."""
    author = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env={**os.environ, **author, **settings}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(repository: Path, content: str) -> str:
    """Add a commit and return its id."""
    (repository / "file").write_text(content)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", content)
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits on ``main``, of which the first has the tag ``v1``."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "one")
    git(folder, "tag", "-m", "The first.", "v1")
    commit(folder, "two")
    return folder


class Site:
    """A host on which workspaces of one repository are made."""

    def __init__(self, folder: Path, repository: Path | str) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.repository = str(repository)
        self.made = 0

    def make(self, ref: str, cell: Cell | None = None) -> Path:
        """Make the next workspace."""
        self.made += 1
        folder = self.folder / "trials" / str(self.made) / "workspace"
        prepare(definition(Workspace(git=self.repository, ref=ref)), cell or {}, folder, self.cache)
        return folder

    @property
    def mirror(self) -> Path:
        (mirror,) = self.cache.glob("*.git")
        return mirror


@pytest.fixture
def site(tmp_path: Path, repository: Path) -> Site:
    return Site(tmp_path, repository)


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever was fetched be old."""
    monkeypatch.setattr(workspaces, "FRESH_SECONDS", 0.0)


# --- empty, and from a template ------------------------------------------------------------------------------------


def test_an_empty_workspace_is_empty_whatever_was_there(tmp_path: Path) -> None:
    """What an interrupted preparation has left is removed."""
    folder = tmp_path / "a" / "b" / "workspace"
    prepare(definition(Workspace()), {}, folder, tmp_path / "cache")
    (folder / "left").write_text("x")
    prepare(definition(Workspace()), {}, folder, tmp_path / "cache")
    assert list(folder.iterdir()) == []


def test_a_template_is_copied_as_it_is(tmp_path: Path) -> None:
    """Links stay links, permissions stay what they are, and the agent may write into the folder itself."""
    template = tmp_path / "template"
    (template / "deep").mkdir(parents=True)
    (template / "run.sh").write_text("exit")
    (template / "run.sh").chmod(0o750)
    (template / "link").symlink_to("nowhere")
    (template / "deep" / "file").write_text("x")
    (template / "deep").chmod(0o555)
    template.chmod(0o555)
    folder = tmp_path / "workspace"
    prepare(definition(Workspace(template=str(template))), {}, folder, tmp_path / "cache")
    assert os.readlink(folder / "link") == "nowhere"
    assert stat.S_IMODE((folder / "run.sh").stat().st_mode) == 0o750
    assert stat.S_IMODE((folder / "deep").stat().st_mode) == 0o555
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert (folder / "deep" / "file").read_text() == "x"
    discard(folder)
    assert not folder.exists()
    template.chmod(0o755)


def test_a_template_that_is_gone_or_holds_the_workspace_is_refused(tmp_path: Path) -> None:
    """The message names what is wrong, and nothing is copied into itself without end."""
    with pytest.raises(WorkspaceFailed, match="No such file or directory"):
        prepare(definition(Workspace(template=str(tmp_path / "no"))), {}, tmp_path / "w", tmp_path)
    with pytest.raises(WorkspaceFailed, match="holds the workspace"):
        prepare(definition(Workspace(template=str(tmp_path))), {}, tmp_path / "in" / "w", tmp_path)


def test_a_digest_tells_every_change_of_a_template(tmp_path: Path) -> None:
    """Names, contents, permissions, links and empty folders count; times do not."""
    seen = [digest_of(tmp_path)]

    def changed() -> bool:
        seen.append(digest_of(tmp_path))
        return seen[-1] not in seen[:-1]

    (tmp_path / "a").write_text("x")
    assert changed()
    (tmp_path / "a").write_text("y")
    assert changed()
    (tmp_path / "a").chmod(0o755)
    assert changed()
    (tmp_path / "a").rename(tmp_path / "b")
    assert changed()
    (tmp_path / "d").mkdir()
    assert changed()
    (tmp_path / "l").symlink_to("b")
    assert changed()
    (tmp_path / "l").unlink()
    (tmp_path / "l").symlink_to("d")
    assert changed()
    os.utime(tmp_path / "b", (1, 1))
    assert not changed()


# --- from a repository ---------------------------------------------------------------------------------------------


def test_a_commit_is_checked_out_into_a_repository_of_its_own(site: Site, repository: Path) -> None:
    """The agent finds the commit and its history, and may commit where nobody has set up a name."""
    folder = site.make("HEAD")
    assert (folder / "file").read_text() == "two"
    assert git(folder, "status", "--porcelain") == ""
    assert git(folder, "log", "--format=%s") == "two\none"
    (folder / "file").write_text("three")
    bare = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    bare |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "commit", "-qam", "three"], cwd=folder, env=bare, check=True)
    assert git(folder, "log", "-1", "--format=%an %s") == "agent three"
    assert git(repository, "log", "-1", "--format=%s") == "two"


@pytest.mark.parametrize(
    ("ref", "content"),
    [
        ("v1", "one"),
        ("refs/tags/v1", "one"),
        ("main", "two"),
        ("refs/heads/main", "two"),
        ("HEAD~1", "one"),
        ("@", "two"),
    ],
)
def test_a_ref_is_whatever_git_takes_for_one(site: Site, ref: str, content: str) -> None:
    """Branches, tags, HEAD and what is reckoned from them."""
    assert (site.make(ref) / "file").read_text() == content


def test_a_ref_has_values_of_the_cell(site: Site, repository: Path) -> None:
    """A placeholder is an axis; commits may be given by their first digits."""
    first = git(repository, "rev-parse", "v1^{commit}")
    assert (site.make("{commit}", {"commit": first}) / "file").read_text() == "one"
    assert (site.make("{commit}", {"commit": first[:10]}) / "file").read_text() == "one"
    assert (site.make("refs/{kind}/{name}", {"kind": "heads", "name": "main"}) / "file").read_text() == "two"


@pytest.mark.parametrize("ref", ["-f", "--upload-pack=x", "a b", "a:b", "a\nb", "a\x1b", "", "+a"])
def test_what_is_no_ref_is_refused_before_git_sees_it(ref: str) -> None:
    """Nothing that a cell says becomes an option of a command."""
    with pytest.raises(ValueError, match="names no commit"):
        ref_of(Workspace(git="x", ref="{a}"), {"a": ref})


def test_nothing_later_is_offered(site: Site, repository: Path) -> None:
    """Of an old commit one sees no branches, no remote and no later tags; what lies in its history stays."""
    git(repository, "tag", "v2")
    git(repository, "branch", "solution")
    folder = site.make("v1")
    assert git(folder, "for-each-ref", "--format=%(refname)") == "refs/tags/v1"
    assert git(folder, "log", "--all", "--format=%s") == "one"
    assert git(folder, "remote") == ""
    assert git(folder, "describe") == "v1"


def test_clones_outlive_the_mirror_and_its_housekeeping(site: Site) -> None:
    """Objects are linked, so that neither a ``gc`` that packs and prunes nor the end of the mirror takes them."""
    one, two = site.make("v1"), site.make("main")
    objects = [path for path in (two / ".git" / "objects").rglob("*") if path.is_file()]
    assert all(path.stat().st_nlink > 1 for path in objects)
    assert objects
    git(site.mirror, "gc", "-q", "--aggressive", "--prune=now")
    git(one, "fsck", "--full", "--strict")
    discard(two)
    shutil.rmtree(site.cache)
    git(one, "fsck", "--full", "--strict")
    git(one, "gc", "-q", "--prune=now")
    assert git(one, "show", "HEAD:file") == "one"
    assert (site.make("main") / "file").read_text() == "two"


def test_a_workspace_that_is_removed_leaves_the_mirror_as_it_was(site: Site) -> None:
    """Also after an agent has made folders of it read-only: modes of linked objects are not touched."""
    folder = site.make("main")
    modes = {path: path.stat().st_mode for path in site.mirror.rglob("*")}
    for path in (folder / ".git" / "objects").rglob("*"):
        if path.is_dir():
            path.chmod(0o500)
    (folder / ".git" / "objects").chmod(0)
    discard(folder)
    assert not folder.exists()
    assert {path: path.stat().st_mode for path in site.mirror.rglob("*")} == modes
    git(site.mirror, "fsck", "--full")


def test_a_branch_is_looked_up_again_and_a_commit_is_not(
    site: Site, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that moved is followed once the mirror is no longer fresh; ids and tags need no repository at all."""
    site.make("main")
    old = git(repository, "rev-parse", "HEAD")
    new = commit(repository, "three")
    assert (site.make("main") / "file").read_text() == "two"
    assert (site.make(new) / "file").read_text() == "three"
    later(monkeypatch)
    assert (site.make("main") / "file").read_text() == "three"
    assert (site.make("HEAD") / "file").read_text() == "three"
    repository.rename(repository.with_name("away"))
    assert (site.make(old) / "file").read_text() == "two"
    assert (site.make(old[:12]) / "file").read_text() == "two"
    assert (site.make("v1") / "file").read_text() == "one"
    with pytest.raises(WorkspaceFailed, match="git fetch failed"):
        site.make("main")


def test_what_a_branch_led_to_once_stays_known(site: Site, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that was checked out is pinned: a branch that is rewritten, and a ``gc``, do not take it away."""
    lost = commit(repository, "lost")
    site.make("main")
    git(repository, "reset", "-q", "--hard", "v1")
    commit(repository, "instead")
    later(monkeypatch)
    assert (site.make("main") / "file").read_text() == "instead"
    git(site.mirror, "reflog", "expire", "--expire=now", "--all")
    git(site.mirror, "gc", "-q", "--prune=now")
    assert (site.make(lost) / "file").read_text() == "lost"


def test_a_branch_may_become_a_folder_of_branches(
    site: Site, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``a`` that was replaced by ``a/b`` is no conflict in the mirror."""
    git(repository, "branch", "a")
    site.make("a")
    git(repository, "branch", "-m", "a", "a/b")
    later(monkeypatch)
    assert (site.make("a/b") / "file").read_text() == "two"


def test_what_no_branch_leads_to_is_fetched_by_its_name(site: Site, repository: Path) -> None:
    """The head of a pull request, as hosting services keep it, and a commit that only its id names."""
    pulled = commit(repository, "pulled")
    git(repository, "update-ref", "refs/pull/7/head", pulled)
    git(repository, "reset", "-q", "--hard", "HEAD~1")
    site.make("main")
    assert (site.make("refs/pull/7/head") / "file").read_text() == "pulled"
    loose = commit(repository, "loose")
    git(repository, "reset", "-q", "--hard", "HEAD~1")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    assert (site.make(loose) / "file").read_text() == "loose"


@pytest.mark.parametrize("ref", ["no-such-branch", "0" * 40, "refs/pull/*/head"])
def test_an_unknown_ref_is_named_with_what_git_says(site: Site, ref: str) -> None:
    """The message has the ref, the repository, and the last line of git."""
    with pytest.raises(WorkspaceFailed, match=r"is no commit, tag or branch of /.*: git fetch failed: \w+"):
        site.make(ref)


def test_a_repository_that_is_none_is_named_with_what_git_says(tmp_path: Path) -> None:
    """A folder without a repository, and an address where nobody answers."""
    for repository in (tmp_path, "http://127.0.0.1:1/x.git"):
        with pytest.raises(WorkspaceFailed, match="git fetch failed: "):
            Site(tmp_path, repository).make("main")


def test_a_shallow_repository_will_do(tmp_path: Path, repository: Path) -> None:
    """What a CI service checks out has no history; it is taken as it is."""
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", "shallow")
    folder = Site(tmp_path, tmp_path / "shallow").make("HEAD")
    assert git(folder, "log", "--format=%s") == "two"


def test_a_repository_whose_head_leads_nowhere_will_do(site: Site, repository: Path) -> None:
    """Only who asks for HEAD needs one."""
    git(repository, "symbolic-ref", "HEAD", "refs/heads/none")
    assert (site.make("main") / "file").read_text() == "two"


def test_hooks_and_surroundings_of_the_host_have_no_say(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks of the user's template and settings are not run, and variables of another repository not followed."""
    template, witness = tmp_path / "template", tmp_path / "witness"
    (template / "hooks").mkdir(parents=True)
    hook = template / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {witness}\n")
    hook.chmod(0o755)
    (tmp_path / "gitconfig").write_text(f"[init]\ntemplateDir = {template}\n[core]\nhooksPath = {template}/hooks\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "elsewhere"))
    folder = site.make("main")
    assert not witness.exists()
    assert not (folder / ".git" / "hooks").exists()
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_WORK_TREE")
    subprocess.run(["git", "checkout", "-q", "HEAD~1"], cwd=folder, check=True)
    assert witness.exists(), "the hook is one that git would run"


def test_a_mirror_that_was_begun_and_not_finished_is_finished(site: Site) -> None:
    """Whatever a killed preparation has left, lock files of git included, the next one goes on from there."""
    site.make("main")
    (site.mirror / "config.lock").touch()
    (site.mirror / "refs" / "heads" / "main.lock").touch()
    for path in site.mirror.rglob("*.lock"):
        os.utime(path, (time.time() - 3600,) * 2)
    (site.mirror.with_suffix(".fetched")).unlink()
    assert (site.make("main") / "file").read_text() == "two"
    assert list(site.mirror.rglob("*.lock")) == []


PREPARE_MANY = """\
import sys
from pathlib import Path
import msgspec
from statem_dist.sweep.model import Definition
from statem_dist.sweep.workspaces import prepare

definition = msgspec.json.decode(sys.argv[1], type=Definition)
sys.stdin.readline()
for ref in sys.argv[4:]:
    prepare(definition, {"ref": ref}, Path(sys.argv[2], ref), Path(sys.argv[3]))
"""


def test_processes_share_a_mirror(site: Site, repository: Path) -> None:
    """Six processes begin at once without a mirror, and a ``gc`` runs all the while; each gets what it asked for."""
    for number in range(5):
        git(repository, "checkout", "-q", "-b", f"b{number}", "main")
        commit(repository, f"b{number}")
    refs = [f"b{number}" for number in range(5)]
    asked = msgspec.json.encode(definition(Workspace(git=site.repository, ref="{ref}"))).decode()
    folders = [site.folder / f"worker-{number}" for number in range(6)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE_MANY, asked, str(folder), str(site.cache), *refs],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for folder in folders
    ]
    for process in processes:
        assert process.stdin
        process.stdin.write(b"\n")
        process.stdin.flush()
    rounds = 0
    while any(process.poll() is None for process in processes):
        for mirror in site.cache.glob("*.git"):
            if (mirror / "HEAD").exists():
                subprocess.run(["git", "gc", "-q"], cwd=mirror, capture_output=True)
                rounds += 1
    assert [process.communicate()[1] for process in processes] == [b""] * 6
    assert rounds
    for folder in folders:
        for ref in refs:
            assert (folder / ref / "file").read_text() == ref
            git(folder / ref, "fsck", "--full")


def test_git_that_takes_too_long_is_ended_with_its_helpers(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of time holds for what git has started as well, here its connection to another host."""
    note = tmp_path / "helper.pid"
    helper = tmp_path / "ssh"
    helper.write_text(
        f"#!{sys.executable}\nimport os, time\nopen('{note}', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    helper.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(helper))
    monkeypatch.setenv("GIT_SSH_VARIANT", "simple")
    monkeypatch.setattr(workspaces, "GIT_SECONDS", 3.0)
    site.repository = "ssh://nowhere.example/x.git"
    with pytest.raises(WorkspaceFailed, match="git fetch took longer than 3 s"):
        site.make("main")
    eventually(lambda: not alive(int(note.read_text())), "the helper has ended")


def test_a_host_without_git_is_told_so(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is missing is named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorkspaceFailed, match="git could not be started"):
        site.make("main")


# --- removal -------------------------------------------------------------------------------------------------------


def test_nothing_is_discarded_twice(tmp_path: Path) -> None:
    """What is not there is no error, and a link is removed without what it leads to."""
    discard(tmp_path / "no")
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    discard(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_bottomless_workspace_is_removed(tmp_path: Path) -> None:
    """Folders that nest deeper than Python recurses, and than any path is long."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    here = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=here)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        discard(folder)
        assert not folder.exists()
    finally:
        # What is left would be too deep for those who tidy up after tests as well.
        subprocess.run(["rm", "-rf", str(folder)])
