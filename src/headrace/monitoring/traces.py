"""Traces of batches for OpenTelemetry: a span for each batch, with a child span for each of its phases.

The environment variables of OpenTelemetry configure the export, for example ``OTEL_EXPORTER_OTLP_ENDPOINT``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.streaming_sql.running_streams import observe_batches
from headrace.streaming_sql.stream_history import PHASES, BatchRecord
from headrace.support.extras import TRACES, check_extras

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


@contextmanager
def exporting_traces() -> Iterator[None]:
    """Export the batches of this process's streams during the block, by OTLP over HTTP.

    Raises:
        MissingDependencyError: OpenTelemetry's packages are not installed.
    """
    check_extras("traces", TRACES)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
    provider = TracerProvider(resource=Resource({SERVICE_NAME: "headrace"}).merge(Resource.create()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("headrace")
    try:
        with observe_batches(lambda stream, batch: add_spans(tracer, stream, batch)):
            yield
    finally:
        provider.shutdown()


def add_spans(tracer: Tracer, stream: str, batch: BatchRecord) -> None:
    """Add the spans of a completed batch.

    Spark reports durations of phases, not their starts. So the phases follow each other from the start of the batch.
    """
    from opentelemetry.trace import set_span_in_context

    facts: dict[str, str | int | None] = {
        "headrace.stream": stream,
        "headrace.batch": batch.batch,
        "headrace.rows_in": batch.rows_in,
        "headrace.rows_out": batch.rows_out,
        "headrace.lag_rows": None if batch.lag is None else batch.lag.rows,
        "headrace.state_rows": batch.state_rows,
    }
    begin = _nanoseconds(batch.time)
    known = {name: value for name, value in facts.items() if value is not None}
    span = tracer.start_span("batch", attributes=known, start_time=begin)
    parent, start = set_span_in_context(span), begin
    for phase in PHASES:
        if phase in batch.durations:
            end = start + _nanoseconds(batch.durations[phase])
            tracer.start_span(phase, parent, start_time=start).end(end)
            start = end
    span.end(max(start, begin + _nanoseconds(batch.seconds)))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
