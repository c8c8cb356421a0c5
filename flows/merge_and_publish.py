"""The whole lifecycle as one flow: detect, verify, plan, merge, validate, pass the gates, publish.

What each step does is ``ckptcore``'s, how it shows in Prefect is ``tasks``'s. The same without Prefect is
``ckptcore.lifecycle``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from pydantic import AfterValidator, Field

from ckptcore.errors import CheckpointError, VersionIncomplete
from ckptcore.expecting import read_expectations
from ckptcore.gates import require_ready
from ckptcore.mappings import mapping
from ckptcore.publishing import Published
from ckptcore.reconciling import fingerprint_of
from ckptcore.rules.gates import DEFAULT_SMOKE_SECONDS, GateOptions, check_function
from ckptcore.rules.output_layout import OutputLayout
from ckptcore.rules.pipeline import version_key, version_tag
from ckptcore.rules.release import DEFAULT_ALIAS, check_alias
from ckptcore.rules.selection import Selection
from ckptcore.rules.sizes import parse_size
from ckptcore.rules.versions import Version
from ckptcore.storage.local import Directories
from tasks.detect import detect
from tasks.ending import ended_by, too_early
from tasks.exclusively import alone_with
from tasks.gate import gate
from tasks.merge import merge
from tasks.plan import plan
from tasks.publish import publish
from tasks.validate import validate
from tasks.verify import verify


def _checked_size(text: str) -> str:
    parse_size(text)
    return text


Natural = Annotated[int, Field(ge=0)]
Size = Annotated[str, AfterValidator(_checked_size)]
Function = Annotated[str, AfterValidator(check_function)]
Seconds = Annotated[float, Field(gt=0)]


@flow(name="merge-and-publish", flow_run_name="{name}")
def merge_and_publish(
    source: str,
    registry: str,
    name: str,
    component: str | None = None,
    step: Natural | None = None,
    unique_id: Natural | None = None,
    prefixes: tuple[str, ...] = (),
    keep_prefix: bool = False,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    max_shard_size: Size = "5GB",
    alias: str = DEFAULT_ALIAS,
    attach: tuple[str, ...] = (),
    expect: str | None = None,
    check: Literal["gpu"] | None = None,
    smoke: Function | None = None,
    smoke_timeout_seconds: Seconds = DEFAULT_SMOKE_SECONDS,
    sign_key: str | None = None,
    layout_map: str | tuple[str, ...] | dict[str, Any] | None = None,
    hf: str | None = None,
    dtype: str | None = None,
    keep_dtype: tuple[str, ...] = (),
    deep: bool = False,
    only_forward: bool = False,
    patience_seconds: Annotated[float, Field(ge=0)] = 0.0,
) -> Published:
    """Publish a version of a training run as a release of a name. Where that release stands already, nothing is done.

    Whatever refuses it fails the run, with every issue in its message, and leaves nothing visible that was not before.

    Args:
        source: A directory of rank files, a step, or a run of `checkpoint-<step>/` directories.
        registry: The directory that holds the releases.
        name: The name to publish under.
        component: `model_state`, `optimizer_state`, …; if not given, `model_state` where it exists.
        step: The training step; if not given, the newest that is complete.
        unique_id: Paddle's unique_id; if not given, the newest that is complete.
        prefixes: Take only the keys under these dotted prefixes.
        keep_prefix: Keep the prefix in the names of the release.
        include: Take only keys that match one of these globs.
        exclude: Leave out keys that match one of these globs.
        max_shard_size: The largest shard: 500MB, 5GB, 2GiB.
        alias: The alias to move to the release.
        attach: Files to put into the release; configuration and tokenizer beside the source are found.
        expect: A YAML file of expected names, shapes, dtypes and counts.
        check: `gpu` loads every tensor on the GPU with Paddle, on the CPU where there is none, before the alias moves.
        smoke: A function of your own, `module:function`, that must accept the release before the alias moves.
        smoke_timeout_seconds: How long that function may take.
        sign_key: A PEM file with the private key that signs the release.
        layout_map: A preset (a model family), a file of AOA statements, or the statements.
        hf: The directory of the Hugging Face model whose configuration and tokenizer go into the release.
        dtype: Round every float tensor to this dtype.
        keep_dtype: But not the tensors whose names match one of these globs.
        deep: Read every payload of the source too: replicas, NaN and Inf.
        only_forward: Leave the alias where it names a later version of the same run.
        patience_seconds: How long to wait for a version that is not whole yet; then the run ends well, as `NotYet`.
    """
    gates = GateOptions(check is not None, smoke, smoke_timeout_seconds, sign_key).gates()
    try:
        require_ready(gates)
        check_alias(alias)
        expectations = read_expectations(None if expect is None else Path(expect))
        version = detect(source, component, step, unique_id, patience_seconds)
        _name_this_run(name, version)
        with alone_with(version, name):
            verify(version, deep)
            selection = Selection(prefixes, keep_prefix, include, exclude)
            laid_out = OutputLayout(None if layout_map is None else mapping(layout_map), hf, dtype, keep_dtype)
            planned = plan(version, selection, parse_size(max_shard_size), laid_out)
            staged = merge(planned, registry, name, attach)
            if not staged.already_published:
                validate(staged, expectations)
            passed = gate(staged, gates, alias) if gates else ()
            return publish(staged, alias, only_forward=only_forward).after(passed)
    except VersionIncomplete as refusal:
        if patience_seconds:
            waiting: Published = too_early(refusal)
            return waiting
        raise
    except CheckpointError as refusal:
        refused: Published = ended_by(refusal)
        return refused


def _name_this_run(name: str, version: Version) -> None:
    """Name the flow run by its version, which is known only once it is detected, and tag it, to be found by it."""
    key = version_key(name, version.directory, version.unique_id, fingerprint_of(version, Directories()))
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=f"{name}: {version.label}", tags={*flow_run.tags, version_tag(key)})
