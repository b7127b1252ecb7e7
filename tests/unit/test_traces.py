"""Traces of batches: a span for each batch, with its phases as children."""

from __future__ import annotations

import subprocess
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.model.tunnels.lag import Lag
from headrace.monitoring.traces import add_spans
from headrace.streaming_sql.stream_history import BatchRecord

WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from headrace.errors import MissingDependencyError
from headrace.monitoring.traces import exporting_traces
try:
    with exporting_traces():
        pass
except MissingDependencyError as error:
    print(error.remedy)
"""


def test_a_batch_is_a_span_with_its_phases_inside() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    durations = {"addBatch": 0.5, "latestOffset": 0.25, "triggerExecution": 1.0, "another": 9.0}
    add_spans(provider.get_tracer("test"), "S", BatchRecord(1000.0, 3, 100, None, durations, Lag(7)))
    provider.shutdown()
    *phases, batch = exporter.get_finished_spans()
    assert batch.name == "batch"
    assert batch.attributes == {
        "headrace.stream": "S",
        "headrace.batch": 3,
        "headrace.rows_in": 100,
        "headrace.lag_rows": 7,
    }
    assert (batch.start_time, batch.end_time) == (1000 * 10**9, 1001 * 10**9)
    assert [phase.name for phase in phases] == ["latestOffset", "addBatch"]
    assert [(phase.start_time, phase.end_time) for phase in phases] == [
        (1000 * 10**9, 1000_250_000_000),
        (1000_250_000_000, 1000_750_000_000),
    ]
    assert batch.context is not None
    assert all(phase.parent and phase.parent.span_id == batch.context.span_id for phase in phases)


def test_a_missing_package_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout == "pip install 'headrace[otel]'\n"
