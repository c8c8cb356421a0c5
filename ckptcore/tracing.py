"""OpenTelemetry spans of the steps, where the environment asks for them, and nothing where it does not.

Owns the reading of ``OTEL_*``, the provider and the exporter; what is a step is ``ckptcore.steps``'. Asked means that
``OTEL_TRACES_EXPORTER`` is ``otlp`` or that an OTLP endpoint is named. Spans go by OTLP over HTTP, from a thread of
their own. Whatever becomes of the collector, no step waits for it or fails by it. Without being asked nothing of
OpenTelemetry is imported, and nothing leaves this machine.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptcore.errors import CheckpointError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP = "http/protobuf"
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_PATIENCE_SECONDS = 3.0
"""How long the collector may take for a batch, tries included: a process that ends waits so long for a dead one."""

_log = logging.getLogger(__name__)


def is_asked(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for spans."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    return exporter == "otlp" or (not exporter and any(environment.get(name) for name in _ENDPOINTS))


def begin(name: str, parent: Span | None) -> Span | None:
    """A span that goes on, within ``parent`` or what the calling program has open; None where nobody asked."""
    tracer = _tracer()
    if tracer is None:
        return None
    from opentelemetry.trace import set_span_in_context

    return tracer.start_span(name, context=None if parent is None else set_span_in_context(parent))


def end(span: Span, facts: Mapping[str, str | int | float], error: BaseException | None) -> None:
    """Close the span with what is known of its step, and with the refusal or fault that ended it."""
    from opentelemetry.trace import Status, StatusCode

    for fact, value in facts.items():
        # A path may hold bytes that are no UTF-8, which a span cannot.
        text = value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
        span.set_attribute(f"ckpt.{fact}", text)
    if isinstance(error, CheckpointError):
        span.set_attribute("ckpt.refusal", type(error).__name__)
        span.set_attribute("ckpt.issues", len(error.issues))
        span.set_status(Status(StatusCode.ERROR, error.message.encode(errors="backslashreplace").decode()))
    elif error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
    span.end()


@functools.cache
def _tracer() -> Tracer | None:
    if not is_asked(os.environ):
        return None
    try:
        return _made()
    except ImportError as error:
        _log.warning("the environment asks for spans, which need the extra `otel`: %s", error)
    except Exception as error:  # noqa: BLE001 - whatever the environment says wrongly, a merge must not fail by it
        _log.warning("there will be no spans: %s", error)
    return None


def _made() -> Tracer:
    from opentelemetry import trace

    current: Any = trace.get_tracer_provider()
    if isinstance(current, trace.ProxyTracerProvider):
        # Our own, not the process's: Prefect would join with spans of every task of every flow.
        current = _provider()
    tracer: Tracer = current.get_tracer("ckptcore")
    return tracer


def _provider() -> Any:
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), _HTTP)
    if protocol != _HTTP:
        raise ValueError(f"OTLP goes by {_HTTP} here, not by {protocol!r}")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # It logs each attempt that fails; that spans are lost is worth no line on the terminal of who merges.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "ckptcore"})
    provider = TracerProvider(resource=resource)  # at the end of the process it hands over the last spans
    patience = None if any(map(os.environ.get, _TIMEOUTS)) else _PATIENCE_SECONDS
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=patience)))
    return provider
