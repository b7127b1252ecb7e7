"""A server that forks Python processes, with pyspark, pandas and headrace loaded.

Spark starts a Python process for each streaming source, and one for each task that has no idle worker. Each would load
the same modules, for 0.45 seconds of a core. The shared session of the tests starts its processes with the launcher
instead, and so do the commands of the documents. It passes its arguments, environment, directory and standard streams
to the server, which forks a process that continues with them as ``python -m MODULE`` does.

Spark ends a Python process by the signal SIGTERM to the launcher, and the forked process must end then, too. If it
does not, it keeps the pipes of the launcher open, a thread of Java waits for their end, and Java remembers the exit
status of the launcher for so long: the next process with the same number, such as a ``chmod`` of Hadoop, then seems to
end at once, with the status 143.
"""

from __future__ import annotations

import fcntl
import gc
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

LAUNCHER = Path(__file__).with_name("launcher.py")
# Not the modules that Spark runs as programs: a module that runs must not be loaded before.
_LOADED = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.worker.utils",
    "pyspark.worker",
    "headrace.cli.app",
    "headrace.cli.output",
    "headrace.derived.state.group_states",
    "headrace.formats.registry",
    "headrace.spark.batch_tasks",
    "headrace.spark.data_sources",
    "headrace.spark.native_sinks",
    "headrace.spark.stream_reader",
    "headrace.stores.embedded.publication.publisher",
    "headrace.stores.embedded.store",
    "headrace.stores.postgres.publication.publisher",
    "headrace.stores.postgres.store",
    "headrace_tablestore.store.store",
    "headrace_ytsaurus.store.store",
    "pyspark_headrace",
    "pyspark_tablestore",
    "pyspark_yt",
    "rich.table",
)


@contextmanager
def serving(directory: Path, *modules: str) -> Iterator[Path]:
    """Run a server, and return the launcher that Spark uses in place of Python.

    Args:
        directory: the directory of the launcher.
        modules: the modules that processes need besides those of Spark and headrace.
    """
    address, launcher = directory / "python.socket", directory / "python"
    text = LAUNCHER.read_text().replace("PYTHON", sys.executable).replace("ADDRESS", str(address))
    # The launcher loads nothing of the environment: it must start fast.
    launcher.write_text(f"#!{sys.executable} -IS\n{text}")
    launcher.chmod(0o755)
    command = [sys.executable, "-m", __name__, str(address), *modules]
    # A process with threads cannot be forked safely.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield launcher
    finally:
        server.communicate()


def serve(address: str, *modules: str) -> None:
    """Fork a process for each connection until the standard input ends; then kill those that still run."""
    os.setpgid(0, 0)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    for name in (*_LOADED, *modules):
        # Old versions of Spark do not have `pyspark.sql.worker.utils`.
        if find_spec(name) is not None:
            import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)  # noqa: T201
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _run(connection)
        connection.close()
    # At its end, a process of Spark Connect waits for a server that has ended, without limit.
    os.killpg(0, signal.SIGKILL)


def _run(connection: socket.socket) -> None:
    """Run the module that the launcher names, in its place; do not return."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        head, streams, _, _ = socket.recv_fds(connection, 4, 3)
        with connection.makefile("rb") as request:
            arguments, environment, directory = marshal.loads(request.read(int.from_bytes(head, "little")))
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        _end_with(connection)
        _read_environment()
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            connection.send(bytes([status & 255]))
        finally:
            os._exit(status)


def _end_with(connection: socket.socket) -> None:
    """Let this process get the signal SIGTERM when the launcher at the other end of a connection has ended."""
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    if hasattr(fcntl, "F_SETSIG"):
        # Without it, as on macOS, the signal is SIGIO, which ends a process, too.
        fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)


def _read_environment() -> None:
    """Repeat what modules have read from the environment when they were loaded."""
    from headrace.support import failpoints

    failpoints.arm(os.environ.get(failpoints.VARIABLE))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(*sys.argv[1:])
