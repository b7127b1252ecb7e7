"""The hook for messages of commits accepts what CONTRIBUTING.md asks for, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / ".githooks" / "commit-msg"


def accepted(message: str, directory: Path) -> tuple[bool, str]:
    """Run the hook for a message; return whether it accepts it, and what it prints."""
    file = directory / "message"
    file.write_text(message)
    subprocess.run(["git", "init", "--quiet", str(directory)], check=True)
    done = subprocess.run([HOOK, file], cwd=directory, capture_output=True, text=True)
    return done.returncode == 0, done.stderr


@pytest.mark.parametrize("message", ["Tables have keys\n\nA row needs a name.\n", f"{'é' * 72}\n\nWhy.\n", "fixup! x"])
def test_a_subject_and_a_reason_are_accepted(message: str, tmp_path: Path) -> None:
    assert accepted(message, tmp_path) == (True, "")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("x" * 73 + "\n\nWhy.\n", "more than 72 characters"),
        ("Tables have keys\nA row needs a name.\n", "second line"),
        ("Tables have keys\n\n# a comment of git\n", "no body"),
    ],
)
def test_other_messages_are_refused_with_the_rule(message: str, problem: str, tmp_path: Path) -> None:
    done, printed = accepted(message, tmp_path)
    assert not done
    assert problem in printed
