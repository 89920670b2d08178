"""Which variables a check sees, and which it never does."""

from __future__ import annotations

import pytest

from statem_dist.checks.environment import (
    RUN_NAMES,
    SECRET_NAMES,
    decides_what_runs,
    inline_environment,
    statem_variables,
    without_credentials,
    worker_environment,
)

SECRETS = dict.fromkeys(SECRET_NAMES, "hush")
CALLER = {
    "PATH": "/bin",
    "REPORT_DAY": "monday",
    "LC_ALL": "C.UTF-8",
    "LD_PRELOAD": "x.so",
    "STATEM_LLM_REVIEW_CMD": "ask",
}


def variables(**changes: str | int | None) -> dict[str, str]:
    """Return the variables of a run, some of them changed."""
    given: dict[str, str | int | None] = {
        "run_id": "owl",
        "current": "dusk",
        "purpose": "condition",
        "entry_id": "e1",
        "check_key": "owl.t1.0",
        "fencing_token": 7,
        "repairs": "out_hook.1",
        "repairs_key": "owl.t1.out_hook.1",
        "spec": "/books/night.yaml",
        "state_dir": "/books/.statem",
        "agent_id": "ida",
        "agent_role": "writer",
        "url": "http://host:8000",
    }
    return statem_variables(**{**given, **changes})  # type: ignore[arg-type]


def test_all_variables_of_a_run_are_set() -> None:
    """Every documented variable has its value."""
    assert variables() == {
        "STATEM_RUN_ID": "owl",
        "STATEM_SPEC": "/books/night.yaml",
        "STATEM_STATE_DIR": "/books/.statem",
        "STATEM_CURRENT": "dusk",
        "STATEM_PURPOSE": "condition",
        "STATEM_ENTRY_ID": "e1",
        "STATEM_AGENT_ID": "ida",
        "STATEM_AGENT_ROLE": "writer",
        "STATEM_URL": "http://host:8000",
        "STATEM_CHECK_KEY": "owl.t1.0",
        "STATEM_FENCING_TOKEN": "7",
        "STATEM_REPAIRS": "out_hook.1",
        "STATEM_REPAIRS_KEY": "owl.t1.out_hook.1",
    }
    assert set(variables()) == RUN_NAMES


@pytest.mark.parametrize(("argument", "name"), [("url", "STATEM_URL"), ("spec", "STATEM_SPEC")])
def test_what_is_unknown_is_absent(argument: str, name: str) -> None:
    """A variable without a value is not set at all, rather than set to an empty text."""
    assert name not in variables(**{argument: None})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:8000/v1", "http://host:8000/v1"),
        ("https://ida:pass@host/v1?a=b@c", "https://host/v1?a=b@c"),
        ("https://token@host", "https://host"),
        ("http://host/?mail=a@b", "http://host/?mail=a@b"),
        ("http://host?mail=a@b", "http://host?mail=a@b"),
    ],
)
def test_credentials_are_taken_out_of_a_url(url: str, expected: str) -> None:
    """The user name and password before a host go, everything else stays."""
    assert without_credentials(url) == expected
    assert variables(url=url)["STATEM_URL"] == expected


def test_inline_checks_see_their_callers_environment() -> None:
    """The caller's variables are all there, but for our own secrets."""
    env = inline_environment({**CALLER, **SECRETS}, variables())
    assert env == {**CALLER, **variables()}


def test_variables_of_an_outer_run_do_not_show_through() -> None:
    """A check that runs inside another run's check sees only its own run."""
    outer = {"STATEM_RUN_ID": "outer", "STATEM_URL": "http://outer", "STATEM_AGENT_ID": "outer"}
    env = inline_environment(outer, variables(url=None, agent_id=None))
    assert env["STATEM_RUN_ID"] == "owl"
    assert "STATEM_URL" not in env
    assert "STATEM_AGENT_ID" not in env


def test_a_worker_hands_on_a_short_list() -> None:
    """Only names that are known to be harmless, and the locale, come from the worker."""
    env = worker_environment({**CALLER, **SECRETS, "AWS_SECRET_ACCESS_KEY": "x"}, {}, (), variables())
    assert env == {"PATH": "/bin", "LC_ALL": "C.UTF-8", **variables()}


def test_a_run_adds_values_and_names() -> None:
    """``--env`` gives values and wins; ``--pass-env`` lets further names of the worker through."""
    env = worker_environment(CALLER, {"PATH": "/run/bin", "SEED": "7"}, ("REPORT_DAY", "ABSENT"), {})
    assert env == {"PATH": "/run/bin", "LC_ALL": "C.UTF-8", "SEED": "7", "REPORT_DAY": "monday"}


@pytest.mark.parametrize("name", sorted(SECRET_NAMES))
def test_secrets_do_not_leak_even_when_asked_for(name: str) -> None:
    """No way of giving a secret, by value or by name, gets it into a check."""
    assert name not in inline_environment(SECRETS, {})
    assert name not in worker_environment(SECRETS, {name: "given"}, (name,), {})


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "LD_PRELOAD",
        "BASH_ENV",
        "PYTHONPATH",
        "GIT_SSH_COMMAND",
        "NODE_OPTIONS",
        "MAKEFLAGS",
        "MAKEFILES",
        "GNUMAKEFLAGS",
        "TAR_OPTIONS",
        "PIP_INDEX_URL",
        "PYTEST_ADDOPTS",
        "PYTEST_PLUGINS",
        "npm_config_script_shell",
        "NPM_CONFIG_REGISTRY",
        "CARGO_HOME",
        "CARGO_BUILD_RUSTC_WRAPPER",
        "RUSTC",
        "RUSTC_WRAPPER",
        "RUSTFLAGS",
        "GOFLAGS",
        "GOPATH",
        "GOROOT",
        "GOTOOLCHAIN",
        "CGO_CFLAGS",
        "PROMPT_COMMAND",
        "SSH_ASKPASS",
        "LESSOPEN",
        "LESSCLOSE",
        "CC",
        "LDFLAGS",
        "OPENSSL_CONF",
        "XDG_CONFIG_HOME",
    ],
)
def test_what_decides_which_code_runs_is_known(name: str) -> None:
    """Whoever may not choose the runbook may not choose these either."""
    assert decides_what_runs(name)


@pytest.mark.parametrize(
    "name", ["TASK", "GOAL", "GOOD", "SEED", "PIPELINE", "RUST_LOG", "CCC", "npm", "MAKER", "LANE"]
)
def test_what_only_begins_alike_is_harmless(name: str) -> None:
    """Names that are a run's own stay free."""
    assert not decides_what_runs(name)
