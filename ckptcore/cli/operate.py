"""Commands for who operates a registry: what is there, what an alias names, what is kept, and what is being read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcore.cli.app import Json, app, complain, print_json

if TYPE_CHECKING:
    from ckptcore.aliasing import Moved
    from ckptcore.pinning import Pinned
    from ckptcore.rules.release import Act
    from ckptcore.rules.retention import ListedRelease, RetentionPlan, Rule

Registry = Annotated[Path, typer.Argument(metavar="REGISTRY", help="The directory that holds the releases.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name in the registry.")]
OneName = Annotated[str | None, typer.Argument(metavar="[NAME]", help="One name; default: every name.")]
Reference = Annotated[str, typer.Argument(metavar="NAME[@ALIAS|@RELEASE]", help="The release.")]
Alias = Annotated[str, typer.Option(metavar="ALIAS", help="The alias to move.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; kept in the history.")]
ExpectCurrent = Annotated[
    str | None,
    typer.Option(metavar="RELEASE", help="Refuse unless the alias names RELEASE now; '' for no such alias yet."),
]


@app.command()
def promote(
    registry: Registry,
    reference: Reference,
    alias: Alias,
    expect_current: ExpectCurrent = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Point an alias to a release, in one step.

    The release must exist and its manifest must be readable. Who, when and why is kept in the history.
    """
    from ckptcore.aliasing import promote as promote_release

    _show_move(promote_release(registry, reference, alias, expect_current=expect_current, reason=reason), as_json)


@app.command()
def rollback(
    registry: Registry,
    name: Name,
    alias: Alias,
    expect_current: ExpectCurrent = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Point an alias back to what it named before.

    Called again, it goes further back. Releases that were pruned are passed over.
    """
    from ckptcore.aliasing import rollback as roll_back

    _show_move(roll_back(registry, name, alias, expect_current=expect_current, reason=reason), as_json)


@app.command()
def aliases(registry: Registry, name: OneName = None, as_json: Json = False) -> None:
    """List the aliases and the releases that they name."""
    from ckptcore.registry import existing_shelf, is_release, links_on
    from ckptcore.rules.release import release_named_by

    documents = []
    for shelf in (existing_shelf(registry, each) for each in _names(registry, name)):
        for alias, text in links_on(shelf).items():
            release = release_named_by(text)
            if not release:
                complain(f"{shelf.name}@{alias} is no alias: it leads to {text!r}, which is no release of {shelf.name}")
                continue
            exists = is_release(shelf.release(release))
            documents.append({"name": shelf.name, "alias": alias, "release": release, "exists": exists})
            if not as_json:
                print(f"{shelf.name}@{alias}  {release}{'' if exists else '  does not exist'}")
    if as_json:
        print_json(documents)


@app.command()
def history(registry: Registry, name: Name, as_json: Json = False) -> None:
    """List every recorded act on NAME, the oldest first."""
    from ckptcore.registry import existing_shelf, history_of

    acts = history_of(existing_shelf(registry, name))
    if as_json:
        print_json([act.to_json() for act in acts])
    else:
        for act in acts:
            print(line_of(act))


@app.command()
def releases(registry: Registry, name: OneName = None, as_json: Json = False) -> None:
    """List the releases in the order of publication.

    Each with what keeps it from being pruned: the aliases that name it, a pin, or a lease.
    """
    from ckptcore.retaining import list_releases

    documents = []
    for each in _names(registry, name):
        for release in list_releases(registry, each):
            documents.append({"name": each} | _release_json(release))
            if not as_json:
                print(f"{each}@{release.name}  {_time(release.published_at)}  {', '.join(release.holders)}".rstrip())
    if as_json:
        print_json(documents)


@app.command()
def pin(registry: Registry, reference: Reference, reason: Reason = "", as_json: Json = False) -> None:
    """Keep a release, whatever the rules of a prune say."""
    from ckptcore.pinning import pin as pin_release

    _show_pin(pin_release(registry, reference, reason=reason), as_json)


@app.command()
def unpin(registry: Registry, reference: Reference, reason: Reason = "", as_json: Json = False) -> None:
    """Let a prune remove a pinned release again."""
    from ckptcore.pinning import unpin as unpin_release

    _show_pin(unpin_release(registry, reference, reason=reason), as_json)


@app.command()
def prune(
    registry: Registry,
    name: Name,
    keep_last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Keep the N releases that were published last.")
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="Keep releases whose step is a multiple of STEPS.")
    ] = None,
    keep_newer_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Keep releases younger than AGE: 90s, 30m, 12h, 7d, 2w.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")] = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Remove the releases that no rule keeps.

    The plan is printed first. A release is kept by any one rule, and always while an alias names it, it is pinned or
    leased, or it is not recognised.
    """
    from ckptcore.retaining import prune as prune_releases

    def show(plan: RetentionPlan) -> None:
        for line in () if as_json else plan.lines():
            print(line, flush=True)

    rules = _rules(keep_last, keep_every, keep_newer_than)
    pruned = prune_releases(registry, name, rules, dry_run=dry_run, reason=reason, on_plan=show)
    if as_json:
        print_json(pruned.to_json())
        return
    for release in pruned.finished:
        print(f"finished  {release}  left by a prune that was stopped")
    for verdict in pruned.spared:
        print(f"spared  {verdict.release}  {', '.join(verdict.reasons)}")
    if not dry_run:
        print(f"removed {len(pruned.removed)}")


@app.command()
def lease(
    registry: Registry,
    reference: Reference,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="{path} becomes the directory.")],
) -> None:
    """Run a command while no prune may remove a release.

    ckpt lease REGISTRY NAME@production -- vllm serve {path}

    The lease ends with the command, however that ends. Exit status and signals are the command's own.
    """
    from ckptcore.leasing import run_leased

    if not command[0]:
        raise typer.BadParameter("the command is empty", param_hint="'-- COMMAND'")
    run_leased(registry, reference, command)


def _names(registry: Path, name: str | None) -> tuple[str, ...]:
    from ckptcore.registry import names_in

    return names_in(registry) if name is None else (name,)


def _rules(keep_last: int | None, keep_every: int | None, keep_newer_than: str | None) -> list[Rule]:
    """The rules that the options name; none at all is a usage error, since it would drop everything."""
    from ckptcore.rules.retention import KeepEvery, KeepLast, KeepNewerThan, parse_age

    rules: list[Rule] = []
    if keep_last is not None:
        rules.append(KeepLast(keep_last))
    if keep_every is not None:
        rules.append(KeepEvery(keep_every))
    if keep_newer_than is not None:
        try:
            rules.append(KeepNewerThan(parse_age(keep_newer_than)))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="'--keep-newer-than'") from error
    if not rules:
        raise typer.BadParameter("name at least one of --keep-last, --keep-every and --keep-newer-than")
    return rules


def _show_move(moved: Moved, as_json: bool) -> None:
    for release in moved.skipped:
        complain(f"passed over {release}, which does not exist any more")
    if as_json:
        print_json(moved.to_json())
    elif moved.did_work:
        print(f"{moved.name}@{moved.alias}: {moved.previous or 'nothing'} -> {moved.release}")
    else:
        print(f"{moved.name}@{moved.alias} names {moved.release} already; nothing was done")


def _show_pin(pinned: Pinned, as_json: bool) -> None:
    if as_json:
        print_json(pinned.to_json())
    else:
        state = "pinned" if pinned.is_pinned else "not pinned"
        print(f"{pinned.name}@{pinned.release}: {state}{'' if pinned.did_work else ' already; nothing was done'}")


def _release_json(release: ListedRelease) -> dict[str, object]:
    return {
        "release": release.name,
        "step": release.step,
        "unique_id": release.unique_id,
        "published_at": _time(release.published_at),
        "aliases": list(release.aliases),
        "pinned": release.is_pinned,
        "leased": release.is_leased,
        "recognised": release.is_recognised,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def line_of(act: Act) -> str:
    """One line, whatever was given as a reason."""
    what = f"{act.alias}: {act.previous or 'nothing'} -> {act.release}" if act.alias else act.release
    run = f" in flow run {act.flow_run}" if act.flow_run else ""
    why = f"  {act.reason!r}" if act.reason else ""
    asked = f" for {act.by!r}" if act.by else ""
    return f"{act.at}  {act.act:<8}  {what}  by {act.user}@{act.host}{asked}{run}{why}"
