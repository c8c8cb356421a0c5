"""Post-training: the last version of each source becomes a candidate, and what is no longer needed goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from ckptcore.errors import CheckpointError
from ckptcore.pipeline import Pipeline
from ckptcore.publishing import Published
from flows.merge_and_publish import merge_and_publish
from flows.parameters import merge_parameters
from tasks.artifacts import artifact_key, cell
from tasks.ending import ended_by_all
from tasks.prune import prune

CANDIDATE = "candidate"


@flow(name="post-training", flow_run_name="{pipeline.name}: post-training")
def post_training(pipeline: Pipeline, alias: str = CANDIDATE) -> list[Published]:
    """Publish the newest complete version of every source as candidate, prune, and report.

    What is refused fails the run when all else is done, with every refusal in its message.

    Args:
        pipeline: The pipeline as its file describes it.
        alias: The alias that the releases get.
    """
    published: list[Published] = []
    refusals: list[Exception] = []
    for source in pipeline.sources:
        parameters = merge_parameters(pipeline, source) | {"alias": alias, "only_forward": False}
        with _noted(refusals):
            published.append(merge_and_publish(**parameters))
    if pipeline.retention.rules():
        for name in pipeline.names:
            with _noted(refusals):
                prune(pipeline.registry, name, pipeline.retention.rules(), False, f"post-training of {pipeline.name}")
    _report(pipeline, published)
    if refusals:
        refused: list[Published] = ended_by_all(refusals)
        return refused
    return published


@contextmanager
def _noted(refusals: list[Exception]) -> Iterator[None]:
    """Let one part be refused without the others, which are not at fault."""
    try:
        yield
    except (CheckpointError, OSError) as refusal:
        refusals.append(refusal)


def _report(pipeline: Pipeline, published: list[Published]) -> None:
    rows = [f"| {cell(f'{each.name}@{each.alias}')} | {cell(each.release)} | {each.did_work} |" for each in published]
    page = [f"# {cell(pipeline.name)}", "", "| name | release | new |", "|---|---|---|", *rows]
    create_markdown_artifact("\n".join(page), key=artifact_key("post-training", pipeline.name))
