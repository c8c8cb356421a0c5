"""The README is true: its commands print what it says, its Python runs, and its links lead somewhere."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import REPOSITORY
from tests.corpus import DATA

README = (REPOSITORY / "README.md").read_text()
CLONE = "/home/ada/ckptcore"
DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place that looks like a clone's directory to what the README runs."""
    (tmp_path / "tests").mkdir()
    # Not linked: sources are named by where they really lie.
    subprocess.run(["cp", "-a", DATA, tmp_path / "tests" / "data"], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(output: str, directory: str) -> str:
    """The output, but for what differs from clone to clone: where it is, and digests over the times of its files."""
    output = output.replace(directory, "CLONE")
    output = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", output)
    output = re.sub(r"(step-\d+_id-\d+)_[0-9a-f]{12}\b", r"\1_IDENTITY", output)
    # The manifest holds the source's path.
    return re.sub(r"^(merged: valid; .* tensors, )[\d,]+ bytes$", r"\1BYTES", output, flags=re.MULTILINE)


def test_the_commands_print_what_the_readme_says(clone: Path) -> None:
    """One shell for all of them, in order, as a reader would run them; stderr after stdout, as both are shown."""
    shown = [
        pair for block in blocks("console") for pair in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]
    main = f"'{sys.executable}' -c 'from ckptcore.cli import main; main()'"
    script = [
        f'ckpt() {{ {main} "$@" 2>.stderr; local status=$?; cat .stderr; return $status; }}',
        # Passes the status on: the next command may ask for it.
        "next() { local status=$?; printf '\\f'; return $status; }",
        *(f"next; {command}" for command, _ in shown),
    ]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    found = done.stdout.split("\f")[1:]
    for (command, expected), output in zip(shown, found, strict=True):
        assert told(output, str(clone)) == told(expected, CLONE), command


def test_the_python_gives_what_the_readme_says(clone: Path) -> None:
    for block in blocks("pycon"):
        example = doctest.DocTestParser().get_doctest(block, {}, "README.md", "README.md", 0)
        assert doctest.DocTestRunner().run(example).failed == 0
        assert example.examples


def test_the_flow_is_the_one_that_the_flows_are_explained_with() -> None:
    [flow] = blocks("python")
    assert flow in (REPOSITORY / "docs" / "flows.md").read_text()  # whose test runs it


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert missing == []
