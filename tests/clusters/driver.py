"""A driver of Spark that runs the code it is sent: ``python -m tests.clusters.driver``.

Each line of standard input is a JSON text with code. The answer is a line with `MARK` and a JSON object: ``value`` is
what the code has assigned to ``result``, ``error`` the text of its error.
"""

from __future__ import annotations

import json
import sys
from typing import Any

MARK = "=> "


def main() -> None:
    names: dict[str, Any] = {}
    for line in sys.stdin:
        names["result"] = None
        try:
            exec(json.loads(line), names)
            answer = {"value": names["result"]}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(f"{MARK}{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
