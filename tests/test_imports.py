"""What import contracts cannot say of modules that are yet to be written: each room imports only the rooms below it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import ckptcore.rules

PACKAGE = Path(ckptcore.rules.__file__).parents[1]
# `errors` rests on `rules.issues` alone, so every room may raise its refusals.
ALLOWED = {
    "rules": ("ckptcore.errors", "ckptcore.rules"),
    "formats": ("ckptcore.errors", "ckptcore.rules", "ckptcore.formats"),
    "storage": ("ckptcore.errors", "ckptcore.rules", "ckptcore.formats", "ckptcore.storage"),
}
MODULES = [
    pytest.param(room, module, id=f"{room}-{module.stem}")
    for room in ALLOWED
    for module in sorted((PACKAGE / room).rglob("*.py"))
]


def imported_by(module: Path) -> set[str]:
    """Full names of what the module imports: for ``from a import b`` that is ``a.b``, a module or a name in one."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Import(aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=source, names=aliases):
                names |= {f"{source}.{alias.name}" for alias in aliases}
    return names


@pytest.mark.parametrize(("room", "module"), MODULES)
def test_a_room_imports_only_the_rooms_below(room: str, module: Path) -> None:
    ours = {name for name in imported_by(module) if name.split(".")[0] in {"ckptcore", "flows", "tasks"}}
    allowed = ALLOWED[room]
    assert {name for name in ours if not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed)} == set()


@pytest.mark.parametrize("module", sorted((PACKAGE / "rules").rglob("*.py")), ids=lambda path: path.stem)
def test_rules_need_no_other_distribution(module: Path) -> None:
    roots = {name.split(".")[0] for name in imported_by(module)}
    assert roots - sys.stdlib_module_names - {"ckptcore"} == set()
