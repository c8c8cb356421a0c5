"""Spans against a receiver of OTLP on this machine, which decodes what really came; and silence where nobody asked."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ckptcore.tracing import is_asked
from tests.collector import ckpt_code, collecting, facts
from tests.corpus import LLAMA_RUN


def test_a_run_is_one_trace_of_its_verbs(tmp_path: Path) -> None:
    with collecting() as collected:
        done = ckpt_code("run", LLAMA_RUN, tmp_path, "--name", "llama", OTEL_EXPORTER_OTLP_ENDPOINT=collected.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert collected.services == {"ckptcore"}
    [root] = collected.named("ckpt.run")
    by_id = {span.span_id: span for span in collected.spans}
    assert {span.trace_id for span in collected.spans} == {root.trace_id}
    assert root.parent_span_id == b""
    under = {span.name: by_id[span.parent_span_id].name for span in collected.spans if span is not root}
    assert under == {
        "ckpt.detect": "ckpt.run",
        "ckpt.verify": "ckpt.detect",
        "ckpt.plan": "ckpt.run",
        "ckpt.merge": "ckpt.run",
        "ckpt.validate": "ckpt.run",
        "ckpt.publish": "ckpt.run",
    }
    for span in collected.spans:
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    [verify, merge, publish] = [facts(collected.named(f"ckpt.{verb}")[0]) for verb in ("verify", "merge", "publish")]
    assert verify["ckpt.version"] == "version 0 of step 100"
    assert (verify["ckpt.state"], verify["ckpt.tensors"]) == ("complete", 21)
    [release] = (tmp_path / "llama" / "releases").iterdir()
    assert merge["ckpt.bytes"] == (release / "model.safetensors").stat().st_size
    assert merge["ckpt.shards"] == 1
    assert publish["ckpt.release"] == merge["ckpt.release"] == release.name


def test_a_refusal_is_told_by_its_class_and_its_sentence(tmp_path: Path) -> None:
    arguments = ("run", LLAMA_RUN, tmp_path, "--name", "llama", "--prefix", "nothing")
    with collecting() as collected:
        done = ckpt_code(
            *arguments, OTEL_TRACES_EXPORTER="otlp", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{collected.url}/v1/traces"
        )
    assert done.returncode == 1
    [plan], [root] = collected.named("ckpt.plan"), collected.named("ckpt.run")
    assert facts(plan)["ckpt.refusal"] == facts(root)["ckpt.refusal"] == "SelectionError"
    assert facts(plan)["ckpt.issues"] == 1
    assert plan.status.code == 2
    assert plan.status.message in done.stderr
    assert not collected.named("ckpt.merge")


def test_a_fault_is_told_as_an_exception(tmp_path: Path) -> None:
    code = """
from ckptcore.steps import tell, verb
@verb("verify")
def broken():
    tell(directory="/a/\\udcff")
    raise KeyError("a bug")
try: broken()
except KeyError: pass
"""
    with collecting() as collected:
        done = ckpt_code(code=code, OTEL_EXPORTER_OTLP_ENDPOINT=collected.url)
    assert (done.returncode, done.stderr) == (0, "")
    [span] = collected.spans
    assert facts(span) == {"ckpt.directory": "/a/\\udcff"}
    assert [event.name for event in span.events] == ["exception"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}, id="nobody-listens"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": "no address at all"}, id="no-address"),
        pytest.param({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, id="another-protocol"),
        pytest.param({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_SCHEDULE_DELAY": "soon"}, id="no-number"),
    ],
)
def test_no_run_fails_by_a_collector_that_is_none(environment: dict[str, str], tmp_path: Path) -> None:
    short = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    done = ckpt_code("run", LLAMA_RUN, tmp_path, "--name", "llama", "--json", **environment, **short)
    assert done.returncode == 0
    assert '"did_work": true' in done.stdout
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1


_WITHOUT_SPANS = """
import sys
from ckptcore.cli import main
sys.argv[0] = "ckpt"
try: main()
except SystemExit as stop: status = stop.code
print([name for name in sys.modules if name.startswith("opentelemetry")])
raise SystemExit(status)
"""


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ],
    ids=["nothing-said", "disabled", "none"],
)
def test_nothing_of_opentelemetry_is_loaded_where_nobody_asked(environment: dict[str, str], tmp_path: Path) -> None:
    done = ckpt_code("run", LLAMA_RUN, tmp_path, "--name", "llama", code=_WITHOUT_SPANS, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_asks() -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert is_asked(endpoint)
    assert is_asked({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"})
    assert is_asked({"OTEL_TRACES_EXPORTER": "otlp"})
    assert not is_asked({})
    assert not is_asked({"OTEL_SERVICE_NAME": "llama"})
    assert not is_asked(endpoint | {"OTEL_TRACES_EXPORTER": "none"})
    assert not is_asked(endpoint | {"OTEL_SDK_DISABLED": "TRUE"})
