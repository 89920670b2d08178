"""The runbook to begin with: ``starter.yaml``, which explains itself, copied to where somebody wants one."""

from __future__ import annotations

from pathlib import Path

from statem_dist.errors import Invalid

STARTER = Path(__file__).with_name("starter.yaml")


def write_starter(path: Path, *, force: bool = False) -> None:
    """Write the starter runbook to a file.

    Args:
        path: the file.
        force: replace a file that is there.

    Raises:
        Invalid: the file exists and is not to be replaced, its name stands for JSON, or it cannot be written.
    """
    if path.suffix.lower() == ".json":
        raise Invalid(
            f"{path} would be read as JSON, and the starter runbook is YAML with comments.",
            hint="Choose a name that ends in .yaml.",
            details={"path": str(path)},
        )
    text = STARTER.read_text(encoding="utf-8")
    try:
        # "x" fails where anything is, also what was written there this moment: nobody loses a file.
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Invalid(
            f"{path} exists already; nothing was written.",
            hint="Choose another name, or replace it with --force.",
            details={"path": str(path)},
        ) from None
    except OSError as error:
        raise Invalid(
            f"{path} cannot be written: {error.strerror or error}.",
            hint="Name a file in a folder that exists and that you may write to.",
            details={"path": str(path)},
        ) from None
