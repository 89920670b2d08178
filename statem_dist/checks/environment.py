"""The environment that a check's command sees, as pure functions of the environments it is made from.

Two rules. Where a command line executes its own checks, they see what their caller sees, as in StateM; on a worker,
which belongs to many, they see a short list of harmless names and what their run was started with. Either way the
addresses and tokens with which *we* reach our own services never get in: a check is somebody else's code.

The variables that describe the run are always set afresh, so that those of an outer run never show through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

SECRET_NAMES = frozenset(
    {
        "STATEM_REDIS_URL",  # Whoever has it can write any run, past every check.
        "STATEM_REDIS_PASSWORD",
        "STATEM_BROKER_URL",  # Whoever has it can make workers run anything.
        "STATEM_TOKEN",  # Speaks for the caller at the REST service.
        "STATEM_TOKENS",
        "STATEM_FLOWER_BASIC_AUTH",
        "CELERY_BROKER_URL",  # Celery reads these two by itself, so a worker may have been given them.
        "CELERY_RESULT_BACKEND",
    }
)
"""Variables that no command of a check ever sees, even when a run asks for them by name."""

RUN_NAMES = frozenset(
    {
        "STATEM_RUN_ID",
        "STATEM_SPEC",
        "STATEM_STATE_DIR",
        "STATEM_CURRENT",
        "STATEM_PURPOSE",
        "STATEM_ENTRY_ID",
        "STATEM_AGENT_ID",
        "STATEM_AGENT_ROLE",
        "STATEM_URL",
        "STATEM_CHECK_KEY",
        "STATEM_FENCING_TOKEN",
        "STATEM_REPAIRS",
        "STATEM_REPAIRS_KEY",
    }
)
"""Variables that describe the run to its checks; ``statem_variables`` is the only source of them."""

WORKER_NAMES = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "SHELL",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
    }
)
"""What a worker hands on of its own environment, next to ``LC_*``: what programs need to work, and nothing to steal."""


PROGRAM_NAMES = frozenset(
    {
        # Shells, and what they and other programs start to edit, show or ask.
        "BASHOPTS",
        "BROWSER",
        "CDPATH",
        "EDITOR",
        "ENV",
        "FPATH",
        "IFS",
        "INPUTRC",
        "LESS",
        "LESSCLOSE",
        "LESSOPEN",
        "MANPAGER",
        "PAGER",
        "PROMPT_COMMAND",
        "PS4",
        "SHELLOPTS",
        "SSH_ASKPASS",
        "SUDO_ASKPASS",
        "VISUAL",
        "XDG_CONFIG_DIRS",
        "XDG_CONFIG_HOME",
        "ZDOTDIR",
        # Tools that read options, or the names of further programs, from variables.
        "CVS_RSH",
        "GREP_OPTIONS",
        "RSYNC_RSH",
        "TAR_OPTIONS",
        # Builds.
        "AR",
        "CC",
        "CFLAGS",
        "CPP",
        "CPPFLAGS",
        "CXX",
        "CXXFLAGS",
        "GNUMAKEFLAGS",
        "LDFLAGS",
        "MAKE",
        "MAKEFILES",
        "MAKEFLAGS",
        "MFLAGS",
        # Go; a prefix would take harmless names.
        "GO111MODULE",
        "GOAUTH",
        "GOBIN",
        "GOCACHE",
        "GOCACHEPROG",
        "GOENV",
        "GOEXPERIMENT",
        "GOFLAGS",
        "GOINSECURE",
        "GOMODCACHE",
        "GONOPROXY",
        "GONOSUMDB",
        "GOPATH",
        "GOPRIVATE",
        "GOPROXY",
        "GOROOT",
        "GOSUMDB",
        "GOTOOLCHAIN",
        "GOTOOLDIR",
        "GOVCS",
        "GOWORK",
        # Java.
        "CLASSPATH",
        "GRADLE_OPTS",
        "JAVA_HOME",
        "JAVA_OPTS",
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "MAVEN_ARGS",
        "MAVEN_OPTS",
        "_JAVA_OPTIONS",
        # Libraries that load further ones.
        "OPENSSL_CONF",
        "OPENSSL_ENGINES",
        "OPENSSL_MODULES",
        "RUSTFLAGS",
    }
)
PROGRAM_PREFIXES = (
    "BASH_",
    "CARGO_",
    "CGO_",
    "DYLD_",
    "GCONV_",
    "GIT_",
    "LD_",
    "LUA_",
    "NODE_",
    "PERL",
    "PIP_",
    "PYTEST_",
    "PYTHON",
    "RUBY",
    "RUSTC",
    "RUSTDOC",
    "RUSTUP_",
    "UV_",
)
NPM_PREFIX = "npm_config_"
"""Variables, and beginnings of their names, that decide which code a program runs, next to ``WORKER_NAMES``.
Npm reads its own in small and in capital letters."""

STORE_WITHHELD = "STATEM_STORE_WITHHELD"
"""Set for commands on a worker whose store they cannot reach: a ``statem-dist`` that they call says so, where it would
otherwise begin an instance of its own."""


def statem_variables(
    *,
    run_id: str,
    current: str,
    purpose: str,
    entry_id: str,
    check_key: str,
    fencing_token: int | None = None,
    repairs: str | None = None,
    repairs_key: str | None = None,
    spec: str | None = None,
    state_dir: str | None = None,
    agent_id: str | None = None,
    agent_role: str | None = None,
    url: str | None = None,
) -> dict[str, str]:
    """Return the variables that describe a run to a check; those that are None are absent.

    Args:
        spec: absolute path of the runbook; None when it came as text.
        check_key: the same for every try of one check of one transition, for commands that must not act twice.
        fencing_token: that of the claim under which a check is executed; it rises with every claim of the run.
        repairs: for a repair, the plan id of the hook that it undoes.
        repairs_key: for a repair, the ``check_key`` of that hook.
        url: where the REST service is; a user name and password in it are left out.
    """
    values = {
        "STATEM_RUN_ID": run_id,
        "STATEM_SPEC": spec,
        "STATEM_STATE_DIR": state_dir,
        "STATEM_CURRENT": current,
        "STATEM_PURPOSE": purpose,
        "STATEM_ENTRY_ID": entry_id,
        "STATEM_AGENT_ID": agent_id,
        "STATEM_AGENT_ROLE": agent_role,
        "STATEM_URL": None if url is None else without_credentials(url),
        "STATEM_CHECK_KEY": check_key,
        "STATEM_FENCING_TOKEN": None if fencing_token is None else str(fencing_token),
        "STATEM_REPAIRS": repairs,
        "STATEM_REPAIRS_KEY": repairs_key,
    }
    return {name: value for name, value in values.items() if value is not None}


def decides_what_runs(name: str) -> bool:
    """Return whether a variable of that name can make a harmless command run somebody else's code.

    Whoever may start a given runbook, and no other, must not be able to change what its commands are by ``PATH`` or
    ``LD_PRELOAD``, nor by the options of shells, of ``make``, ``tar``, ``git`` and pagers, of the package managers and
    builds of Python, Node, Rust, Go, C and Java, and of pytest. The list cannot be complete, because any program may
    have such a variable of its own.
    """
    return (
        name in WORKER_NAMES
        or name in PROGRAM_NAMES
        or name.startswith(PROGRAM_PREFIXES)
        or name.lower().startswith(NPM_PREFIX)
    )


def inline_environment(caller_env: Mapping[str, str], statem_vars: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a check that the caller's own process executes."""
    return {**_admitted(caller_env), **statem_vars}


def worker_environment(
    worker_env: Mapping[str, str],
    run_env: Mapping[str, str],
    pass_names: Iterable[str],
    statem_vars: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment of a check on a worker.

    Args:
        worker_env: the worker's own environment, of which only ``WORKER_NAMES`` and ``LC_*`` are handed on.
        run_env: what the run was started with (``--env NAME=value``); wins over the worker's.
        pass_names: further names to hand on of the worker's environment (``--pass-env NAME``).
        statem_vars: the result of ``statem_variables``.
    """
    names = WORKER_NAMES.union(pass_names)
    own = {name: value for name, value in worker_env.items() if name in names or name.startswith("LC_")}
    return {**_admitted(own), **_admitted(run_env), **statem_vars}


def without_credentials(url: str) -> str:
    """Return a URL without the user name and password that may stand before its host."""
    return re.sub(r"^([^/?#]*//)[^/?#]*@", r"\1", url)


def _admitted(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in SECRET_NAMES and name not in RUN_NAMES}
