"""Commands that look into releases and change nothing: is the registry sound, what is a release, what has changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from ckptcore.cli.app import Json, app, complain, print_json
from ckptcore.cli.operate import OneName, Reference, Registry, line_of

Since = Annotated[
    str | None,
    typer.Option(metavar="AGE|DATE", help="Only releases made since then: 12h, 7d, 2024-05-01, 2024-05-01T12:00."),
]
Sides = Annotated[
    list[str],
    typer.Argument(metavar="[REGISTRY] A B", help="Two releases, NAME[@ALIAS|@RELEASE], or two directories."),
]


@app.command()
def audit(registry: Registry, name: OneName = None, since: Since = None, as_json: Json = False) -> None:
    """Re-read a registry against its manifests, every byte.

    Finds what is missing, extra, cut or flipped, aliases that lead to nowhere, and what killed processes left behind.
    An audit that was interrupted goes on where it stopped.
    """
    from ckptcore.auditing import audit as audit_registry
    from ckptcore.cli.progress import ByteProgress
    from ckptcore.rules.sizes import format_size

    moment = None if since is None else _moment(since)
    report = audit_registry(
        registry, name, since=moment, on_start=lambda size_bytes: ByteProgress(size_bytes, "the data")
    )
    if as_json:
        print_json(report.to_json())
    else:
        verdict = f"not clean, {len(report.issues)} issue(s)" if report.issues else "clean"
        skipped = f" ({report.skipped:,} older ones skipped)" if report.skipped else ""
        print(
            f"{report.registry}: {verdict}; {report.names:,} names, {report.releases:,} releases{skipped}, "
            f"{report.files:,} files, {format_size(report.size_bytes)}"
        )
        if report.continued:
            print(f"  continued: {report.continued:,} files were read by the audit begun at {report.continued_from}")
        for note in report.notes:
            print(f"  note: {note}")
    for issue in report.issues:
        complain(str(issue))
    if report.issues:
        raise typer.Exit(1)


@app.command()
def show(registry: Registry, reference: Reference, as_json: Json = False) -> None:
    """Show what a release is and where it came from.

    Its source, files, sizes and digests, the aliases that name it now, and who did what to it.
    """
    from ckptcore.describing import describe_release

    release = describe_release(registry, reference)
    if as_json:
        print_json(release.to_json())
        return
    for line in release.lines():
        print(line)
    for act in release.acts:
        print(f"  {line_of(act)}")


@app.command()
def diff(sides: Sides, as_json: Json = False) -> None:
    """Compare the tensors of two releases, values included.

    What changed in value comes last, the largest relative change first. Tensors of equal digests are not read. The exit
    status is 0 whether or not something differs.
    """
    from ckptcore.cli.progress import ByteProgress
    from ckptcore.differing import diff as diff_directories
    from ckptcore.registry import resolve

    def watched(size_bytes: int) -> ByteProgress:
        return ByteProgress(size_bytes, "the comparison")

    match sides:
        case [registry, a, b]:
            report = diff_directories(resolve(registry, a), resolve(registry, b), on_start=watched)
        case [a, b]:
            report = diff_directories(a, b, on_start=watched)
        case _:
            raise typer.BadParameter("expected a registry and two releases, or two directories")
    if as_json:
        print_json(report.to_json())
        return
    for line in report.lines():
        print(line)


@app.command()
def health(
    sides: Annotated[
        list[str], typer.Argument(metavar="[REGISTRY] A", help="A release, NAME[@ALIAS|@RELEASE], or a directory.")
    ],
    as_json: Json = False,
) -> None:
    """Read the values of a release: NaN, infinities, the largest value and the norm of each tensor.

    The exit status is 0 whatever is found; tensors with NaN or infinities are told on stderr.
    """
    from ckptcore.cli.progress import ByteProgress
    from ckptcore.health import health as health_of
    from ckptcore.registry import resolve

    match sides:
        case [registry, reference]:
            place = str(resolve(registry, reference))
        case [place]:
            pass
        case _:
            raise typer.BadParameter("expected a registry and a release, or a directory")
    report = health_of(place, on_start=lambda size_bytes: ByteProgress(size_bytes, "the values"))
    if as_json:
        print_json(report.to_json())
    else:
        for line in report.lines():
            print(line)
    for tensor in report.sick:
        complain(str(tensor))


def _moment(text: str) -> datetime:
    from ckptcore.rules.audit import parse_since

    try:
        return parse_since(text, datetime.now(UTC))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
