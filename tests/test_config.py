"""ckpt.yaml: what is right becomes a pipeline, and all that is wrong is told at once, each with its line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ckptcore.config import read_config
from ckptcore.errors import InvalidConfig
from ckptcore.intentions import intentions
from ckptcore.pipeline import ALERTS, Pipeline, RunnerSettings, as_document
from ckptcore.rules.gates import SmokeTest
from ckptcore.rules.output_layout import LayoutMap, OutputLayout
from ckptcore.rules.retention import KeepEvery, KeepLast, KeepNewerThan
from tests.command import REPOSITORY, ckpt
from tests.corpus import LLAMA_RUN

SMALLEST = "name: llama\nregistry: registry\nsources: [{path: output}]\n"


def written(directory: Path, text: str) -> Path:
    path = directory / "ckpt.yaml"
    path.write_text(text)
    return path


def mistakes(directory: Path, text: str) -> list[str]:
    with pytest.raises(InvalidConfig) as refused:
        read_config(written(directory, text))
    return [str(issue) for issue in refused.value.issues]


def test_the_smallest_file(tmp_path: Path) -> None:
    pipeline = read_config(written(tmp_path, SMALLEST))
    assert (pipeline.registry, pipeline.server.state) == (str(tmp_path / "registry"), str(tmp_path / ".ckpt"))
    assert [(source.path, pipeline.alias_of(source)) for source in pipeline.sources] == [
        (str(tmp_path / "output"), "latest")
    ]
    assert Pipeline.model_validate(as_document(pipeline)) == pipeline


def test_every_part(tmp_path: Path) -> None:
    (tmp_path / "shapes.yaml").write_text("tensors: {w: {shape: [8, 6]}}")
    (tmp_path / "map.yaml").write_text("aoa_statements: ['w -> v']")
    pipeline = read_config(
        written(
            tmp_path,
            """
name: llama
registry: /models
alias: best
work_pool: gpus
server: {url: "http://prefect.example.org/api"}
sources:
  - {path: output, component: model_state, prefixes: [model], expectations: shapes.yaml, max_shard_size: 2GiB}
  - {path: output, name: ema, alias: newest, include: ["ema.*"], exclude: ["*.bias"], attach: [LICENSE]}
  - {path: output, name: hf, map: llama, hf: config, dtype: bfloat16, keep_dtype: ["*.norm.*"]}
  - {path: output, name: mapped, map: map.yaml}
  - {path: output, name: said, map: ["a^T -> b"]}
checks: {deep: true, gpu: true, smoke: "mine.tests:accepts", smoke_timeout: 90, smoke_gpus: 2, sign_key: key.pem}
gpu_work_pool: big
gpu_devices: 4
schedule: {reconcile: null, post_training: 0 6 * * *, prune: 1d, audit: 2w}
stall: 2h
watch: {every: 1s, slowest: 30s, settle: 2}
limits: {merges: 1, queued: 9, superseded: stop}
runner: {dask: "tcp://scheduler:8786"}
retention: {last: 5, every: 1000, newer_than: 7d}
notifications:
  - webhook: http://127.0.0.1:1/hook
  - {block: slack-webhook/team, alerts: [stalled]}
""",
        )
    )
    assert pipeline.names == ("llama", "ema", "hf", "mapped", "said")
    assert [pipeline.alias_of(source) for source in pipeline.sources] == ["best", "newest", "best", "best", "best"]
    hf, mapped, said_here = (source.layout() for source in pipeline.sources[2:])
    assert hf == OutputLayout(LayoutMap("llama"), str(tmp_path / "config"), "bfloat16", ("*.norm.*",))
    assert mapped == OutputLayout(LayoutMap("", ("w -> v",)))
    assert said_here == OutputLayout(LayoutMap("", ("a^T -> b",)))
    assert pipeline.sources[0].selection.prefixes == ("model",)
    assert pipeline.sources[1].attach == (str(tmp_path / "LICENSE"),)
    assert SmokeTest("mine.tests:accepts", 90.0, 2) in pipeline.checks.options().gates()
    assert pipeline.retention.rules() == (KeepLast(5), KeepEvery(1000), KeepNewerThan(604_800.0))
    assert [target.alerts for target in pipeline.notifications] == [ALERTS, ("stalled",)]
    said = "\n".join(intentions(pipeline))
    for expected in (
        "model.*, as llama@best in /models",
        "ema@newest",
        "laid out by llama rounded to bfloat16, as hf@best",
        "laid out by its statements, as said@best",
        "by Dask: the cluster at tcp://scheduler:8786",
        "every 14d",
        "at '0 6 * * *'",
        "team of: stalled",
        "in the work pool big, for which a worker must run; the GPUs of a host: 0, 1, 2, 3",
        "but let every third one finish",
    ):
        assert expected in said
    assert "reconcile" not in said


def test_what_a_host_is_said_to_have(tmp_path: Path) -> None:
    for said, devices in (("[2, 0]", (2, 0)), ("3", (0, 1, 2)), ("0", ()), ("null", None)):
        assert read_config(written(tmp_path, f"{SMALLEST}gpu_devices: {said}")).gpu_devices == devices
    [twice] = mistakes(tmp_path, f"{SMALLEST}gpu_devices: [1, 1]")
    assert twice == "ckpt.yaml:4: gpu_devices: names a device twice"
    assert [line.split(": ")[0] for line in mistakes(tmp_path, f"{SMALLEST}gpu_devices: [-1]")] == ["ckpt.yaml:4"]
    assert mistakes(tmp_path, f"{SMALLEST}gpu_devices: two")


def test_a_check_that_cannot_compare_is_refused_where_it_is_asked_for(tmp_path: Path) -> None:
    text = (
        "name: a\nregistry: r\nsources:\n- {path: x}\n- {path: x, name: b, dtype: float16}\nchecks: {engine: paddle}\n"
    )
    [refused] = mistakes(tmp_path, text)
    assert refused == (
        "ckpt.yaml:6: checks.engine compares tensors as they were saved, and sources.1.dtype changes them"
    )
    assert read_config(written(tmp_path, f"{SMALLEST}checks: {{engine: paddle}}")).checks.options().engine


def test_every_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    assert mistakes(
        tmp_path,
        """name: llama
registri: reg
alias: step-3_id-0_0123456789ab
sources:
  - path: out
    component: modelstate
    max_shard_size: 5 apples
  - path: out
    prefixes: 7
    expectations: nope.yaml
    map: lama
    dtype: int8
  - {path: out, name: x, keep_dtype: [w], map: [w ->> v, "x -> y", "-> z"]}
schedule:
  prune: 61 bad
stall: soon
stall: 2h
gpu: {slots: 4}
watch: {every: 0}
runner: {dask: no}
notifications:
  - alerts: [falled]
""",
    ) == [
        "ckpt.yaml:1: registry is missing",
        "ckpt.yaml:2: registri is not known; did you mean registry?",
        "ckpt.yaml:3: alias: alias 'step-3_id-0_0123456789ab' has the form of a release's name",
        (
            "ckpt.yaml:6: sources.0.component: is none of model_state, optimizer_state, master_weight, ema_state, "
            "dist_ckpt: found 'modelstate'"
        ),
        "ckpt.yaml:7: sources.0.max_shard_size: '5 apples' is not a size such as 500MB, 5GB or 2GiB",
        "ckpt.yaml:8: sources.1 publishes as 'llama', as sources.0 does: give it a name",
        "ckpt.yaml:9: sources.1.prefixes: Input should be a valid tuple: found 7",
        f"ckpt.yaml:10: sources.1.expectations: cannot read {tmp_path}/nope.yaml: No such file or directory",
        (
            f"ckpt.yaml:11: sources.1.map: {tmp_path}/lama: neither a preset nor a file; the presets are deepseek_v3, "
            "ernie4_5, ernie4_5_moe, glm4_moe, llama, qwen2, qwen3, qwen3_moe"
        ),
        "ckpt.yaml:12: sources.1.dtype: is none of float64, float32, float16, bfloat16: found 'int8'",
        "ckpt.yaml:13: sources.2.map: 2 layout statements cannot be understood",
        "ckpt.yaml:13: sources.2: keep_dtype says what dtype leaves alone; give both",
        "ckpt.yaml:13: statement 1 `w ->> v`: unexpected character '>' at position 4",
        "ckpt.yaml:13: statement 3 `-> z`: expected a tensor name, found '->' at position 0",
        "ckpt.yaml:15: schedule.prune: '61 bad' is neither a time such as 5m or 1h nor a cron line of five fields",
        "ckpt.yaml:15: schedule.prune: retention says of nothing that it is kept",
        "ckpt.yaml:17: stall is given twice; first on line 16",
        (
            "ckpt.yaml:18: gpu is not known; known here: alias, checks, dashboard, gpu_devices, gpu_work_pool, limits, "
            "name, notifications, registry, retention, runner, schedule, server, sources, stall, watch, work_pool"
        ),
        "ckpt.yaml:19: watch.every: '0s' is not an age such as 90s, 30m, 12h, 7d or 2w",
        (
            "ckpt.yaml:20: runner.dask: is neither a number of processes nor a scheduler's address, such as "
            "tcp://host:8786: found False"
        ),
        "ckpt.yaml:22: notifications.0 needs one of webhook and block",
        (
            "ckpt.yaml:22: notifications.0.alerts.0: Input should be 'stalled', 'damaged', 'failed', 'refused' or "
            "'crashed': found 'falled'"
        ),
    ]


@pytest.mark.parametrize(
    ("text", "runner"),
    [
        ("threads", RunnerSettings()),
        ("{}", RunnerSettings()),
        ("{dask: 3}", RunnerSettings(dask=3)),
        ("{ray: 'ray://head:10001'}", RunnerSettings(ray="ray://head:10001")),
    ],
)
def test_who_writes_the_shards(tmp_path: Path, text: str, runner: RunnerSettings) -> None:
    assert read_config(written(tmp_path, f"{SMALLEST}runner: {text}\n")).runner == runner


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the document: Input should be a valid dictionary"),
        ("- 1", "the document: Input should be a valid dictionary"),
        ("name: 7", "name: Input should be a valid string: found 7"),
        (SMALLEST + "? [1, 2]\n: 3\n", "not a YAML document"),
        (SMALLEST + "stall: 0000-99-99\n", "not a YAML document"),
        ("a: [", "line 1, column 5: expected the node content"),
        ("\x00", "not a YAML document"),
        (SMALLEST + "checks: {smoke: nothing}\n", "ckpt.yaml:4: checks.smoke: not a function"),
        (SMALLEST + "server: {url: here}\n", "server.url: is no http:// or https:// address"),
        (SMALLEST + "limits: {merges: 0}\n", "limits.merges: Input should be greater than 0"),
        (
            SMALLEST + "runner: process\n",
            "ckpt.yaml:4: runner: is neither `threads` nor `{dask: …}` nor `{ray: …}`: found 'process'",
        ),
        (SMALLEST + "runner: {dask: 0}\n", "runner.dask: is neither a number of processes nor a scheduler's address"),
        (SMALLEST + "runner: {dask: host}\n", "ckpt.yaml:4: runner.dask: is neither a number"),
        (SMALLEST + "runner: {ray: host}\n", "ckpt.yaml:4: runner.ray: is neither a number"),
        (SMALLEST + "runner: {ray: 2, dask: 2}\n", "ckpt.yaml:4: runner: names two; give one of dask and ray"),
        (SMALLEST + "sources: []\n", "sources is given twice"),
        ("name: a\nregistry: r\nsources: []\n", "ckpt.yaml:3: sources: Tuple should have at least 1 item"),
        (SMALLEST + "checks: {depp: 1}\n", "ckpt.yaml:4: checks.depp is not known; did you mean deep?"),
        (
            "name: a\nregistry: r\nsources: [{path: p, zzz: 1}]\n",
            "sources.0.zzz is not known; known here: alias, attach",
        ),
    ],
)
def test_what_no_file_may_say(tmp_path: Path, text: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = ckpt(capfd, "check", written(tmp_path, text))
    assert (outcome.status, outcome.stdout) == (1, "")
    assert said in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_file_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = ckpt(capfd, "check", tmp_path / "ckpt.yaml")
    assert (outcome.status, outcome.stderr) == (
        1,
        f"ckpt: cannot read {tmp_path}/ckpt.yaml: No such file or directory\n",
    )


def test_init_writes_a_file_that_check_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ckpt(capfd, "init", LLAMA_RUN, "--name", "llama").status == 0
    outcome = ckpt(capfd, "check", "--json")
    document = json.loads(outcome.stdout)
    assert document["pipeline"]["sources"][0]["path"] == str(LLAMA_RUN)
    assert document["pipeline"]["sources"][0]["component"] == "model_state"
    assert "prefixes: [lm_head, model]" in Path("ckpt.yaml").read_text()
    again = ckpt(capfd, "init", LLAMA_RUN, "--name", "llama")
    assert (again.status, "exists already" in again.stderr) == (1, True)


def test_what_init_comments_out_is_right_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ckpt(capfd, "init", LLAMA_RUN, "--name", "it's: llama")
    lines = Path("ckpt.yaml").read_text().splitlines()[2:]
    without = "\n".join(line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line for line in lines)
    shown = yaml.safe_load(without)
    assert {"retention", "notifications", "server"} <= shown.keys()
    for source in shown["sources"]:
        source.pop("expectations", None)  # there is no such file
    Path("all.yaml").write_text(yaml.safe_dump(shown))
    assert read_config("all.yaml").names == ("it's: llama", "it's: llama-ema")


def test_only_the_commands_that_need_it_import_pydantic() -> None:
    script = "import ckptcore.cli, sys; sys.exit('pydantic' in sys.modules or 'prefect' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SMALLEST + "schedule: {audit: 61 3 * * *}\n", ["ckpt.yaml:4: schedule.audit", "'61'", "expected 0 to 59"]),
        (SMALLEST + "schedule: {audit: 0 3 30 2 *}\n", ["ckpt.yaml:4: schedule.audit", "no month", "day 30"]),
        (SMALLEST + "stall: 5s\n", ["ckpt.yaml:4: stall", "'5s'", "expected 10s or more"]),
        (SMALLEST + "work_pool: a/b\n", ["ckpt.yaml:4: work_pool", "'a/b'", "expected none of"]),
        (SMALLEST + "work_pool: prefect-x\n", ["ckpt.yaml:4: work_pool", "'prefect-x'", "expected another"]),
        (SMALLEST + "notifications: [{block: team}]\n", ["ckpt.yaml:4: notifications.0.block", "expected TYPE/NAME"]),
        (SMALLEST.replace("name: llama", "name: a%b"), ["ckpt.yaml:1: name", "'a%b'", "expected none of"]),
    ],
)
def test_what_the_server_would_break_on_is_refused_before(tmp_path: Path, text: str, told: list[str]) -> None:
    [mistake] = mistakes(tmp_path, text)
    for part in told:
        assert part in mistake


def test_a_stall_that_nobody_is_told_of_is_warned_of(tmp_path: Path) -> None:
    for notifications, warns in (
        ("", True),
        ("notifications: [{webhook: 'http://a/', alerts: [failed]}]\n", True),
        ("notifications: [{webhook: 'http://a/'}]\n", False),
    ):
        said = list(intentions(read_config(written(tmp_path, f"{SMALLEST}stall: 6h\n{notifications}"))))
        assert any(line.startswith("warning: tell nobody") for line in said) == warns
        assert any(line == "alert where no version comes for 6h" for line in said) != warns
