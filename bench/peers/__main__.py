"""One benchmark of a peer, in the process that `bench.peers.running.on_peers_spark` starts; its result as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench.measure import Result
from bench.peers import delta, kafka, kafka_latency

_BENCHMARKS: dict[str, Callable[[Path, float], Result]] = {
    "kafka_source": kafka.source,
    "kafka_copy": kafka.copy,
    "kafka_latency": kafka_latency.latency,
    "delta_merge": delta.merge,
    "delta_feed": delta.feed,
}

if __name__ == "__main__":
    name, directory, scale, output = sys.argv[1:]
    result = _BENCHMARKS[name](Path(directory), float(scale))
    Path(output).write_text(json.dumps(asdict(result)))
