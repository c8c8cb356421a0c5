"""What is measured: ``ckpt merge``, and what else could be run on the same bytes.

Owns the commands. Paddle and torch are run by whatever interpreter has them, never imported here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.bench.measuring import CALL_SECONDS, Contender

REPOSITORY = Path(__file__).parents[2]

MERGE = "ckpt merge"
MERGE_WITHOUT_DIGESTS = "ckpt merge --no-digests"
CP = "cp"
CP_AND_SHA256SUM = "cp + sha256sum"
TRANSPOSED = "ckpt merge --map, all transposed"
FUSED = "ckpt merge --map, qkv and gate/up taken apart"
CAST = "ckpt merge --dtype float16"
PADDLE = "paddle merge_sharded_state_dict"
TORCH = "torch consolidate_safetensors_files"

_MATRICES = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.up_gate_proj", "mlp.down_proj")
_CKPT = "from ckptcore.cli import main; main()"
_COPY_AND_HASH = 'out=$1; shift; cp "$@" "$out" && cd "$out" && exec sha256sum -- *'

_PADDLE_MERGE = f"""
import sys, time
import paddle
from paddle.distributed.flex_checkpoint.dcp.load_state_dict import merge_sharded_state_dict
paddle.set_device("cpu")
start = time.perf_counter()
merge_sharded_state_dict(sys.argv[1], sys.argv[2], offload=True)
print(f"{CALL_SECONDS}{{time.perf_counter() - start}}", flush=True)
"""

# As many output files as cores: its threads share the work file by file.
_TORCH_CONSOLIDATE = f"""
import glob, os, sys, time
from safetensors import safe_open
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
threads = len(os.sched_getaffinity(0))
names = []
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.safetensors"))):
    with safe_open(path, "pt") as shard:
        names += shard.keys()
names = sorted(set(names))
start = time.perf_counter()
mapping = {{name: 1 + n * threads // len(names) for n, name in enumerate(names)}}
consolidate_safetensors_files(sys.argv[1], sys.argv[2], mapping, num_threads=threads)
print(f"{CALL_SECONDS}{{time.perf_counter() - start}}", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A generated checkpoint: its name in the table, where it is, and what it amounts to."""

    name: str
    directory: Path
    size_bytes: int
    tensors: int
    pieces: int
    rank_files: int


def cp(source: Source) -> Contender:
    """The baseline: the rank files copied, which is no merge, but moves the same bytes."""
    files = sorted(map(str, source.directory.glob("*.distcp")))
    return Contender(source.name, CP, source.size_bytes, source.pieces, lambda out: ["cp", *files, str(out)])


def merge(source: Source, *, digests: bool, options: Sequence[str] = ()) -> Contender:
    """``ckpt merge`` as a process of its own, interpreter start-up and verification included."""
    options = [*options] if digests else [*options, "--no-digests"]
    argv = [sys.executable, "-c", _CKPT, "merge", *options, str(source.directory)]
    return Contender(
        source.name,
        MERGE if digests else MERGE_WITHOUT_DIGESTS,
        source.size_bytes,
        source.pieces,
        lambda out: [*argv, str(out / "merged")],
        environment={"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *_python_path()])},
        baseline=cp(source),
    )


def laid_out(source: Source, name: str, heads: int, scratch: Path) -> Contender:
    """``ckpt merge`` of the mixed checkpoint that transposes every matrix, takes fused ones apart, or casts."""
    layer = "model.layers.$LAYER_ID"
    plain = {TRANSPOSED: _MATRICES, FUSED: ("self_attn.o_proj", "mlp.down_proj"), CAST: ()}[name]
    statements = [f"{layer}.{matrix}.weight^T -> {layer}.{matrix}.weight" for matrix in plain]
    if name == FUSED:
        qkv = ", ".join(f"{layer}.self_attn.{part}_proj.weight" for part in "qkv")
        gate_up = f"{layer}.mlp.gate_proj.weight, {layer}.mlp.up_proj.weight"
        grouped = f"fused_qkv, num_heads={heads}, num_key_value_groups={heads}, axis=0"
        statements += [
            f"{layer}.self_attn.qkv_proj.weight^T -> {qkv}, {grouped}",
            f"{layer}.mlp.up_gate_proj.weight^T -> {gate_up}, fused_ffn, axis=0",
        ]
    options = ["--dtype", "float16"]
    if name != CAST:
        written = scratch / f"{'fused' if name == FUSED else 'transposed'}.json"
        written.write_text(json.dumps(statements))
        options = ["--map", str(written)]
    return replace(merge(source, digests=True, options=options), name=name)


def cp_and_sha256sum(source: Source) -> Contender:
    """The rank files copied, then the copies hashed."""
    files = sorted(map(str, source.directory.glob("*.distcp")))
    return Contender(
        source.name,
        CP_AND_SHA256SUM,
        source.size_bytes,
        source.pieces,
        lambda out: ["sh", "-c", _COPY_AND_HASH, "sh", str(out), *files],
        baseline=cp(source),
    )


def paddle_merge(source: Source, interpreter: Path, *, most_rounds: int) -> Contender:
    """Paddle's own merge of the same directory, in one process on the CPU."""
    argv = partial(_script, interpreter, _PADDLE_MERGE, source.directory)
    return Contender(
        source.name, PADDLE, source.size_bytes, source.pieces, argv, baseline=cp(source), most_rounds=most_rounds
    )


def torch_consolidate(source: Source, shards: Path, interpreter: Path, *, most_rounds: int) -> Contender:
    """torch's merge of the same tensors, which lie in ``shards`` as its distributed checkpoint writes them."""
    argv = partial(_script, interpreter, _TORCH_CONSOLIDATE, shards)
    return Contender(
        source.name, TORCH, source.size_bytes, source.pieces, argv, baseline=cp(source), most_rounds=most_rounds
    )


def _python_path() -> Sequence[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _script(interpreter: Path, script: str, source: Path, out: Path) -> Sequence[str]:
    return [str(interpreter), "-c", script, str(source), str(out)]


def interpreter_with(modules: Sequence[str], candidates: Iterable[Path]) -> Path | None:
    """The first of the interpreters that has all the modules; none is imported."""
    script = "import sys, importlib.util as u; sys.exit(not all(u.find_spec(m) for m in sys.argv[1:]))"
    for candidate in candidates:
        if not os.access(candidate, os.X_OK):
            continue
        if subprocess.run([candidate, "-c", script, *modules], check=False).returncode == 0:
            return candidate
    return None


def known_interpreters(others: Iterable[Path]) -> tuple[Path, ...]:
    """Those that were named, this one, and those of the repository's virtual environments."""
    return (*others, Path(sys.executable), *sorted(REPOSITORY.glob(".venv*/bin/python")))
