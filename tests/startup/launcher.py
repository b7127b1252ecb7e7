# Passes its arguments, environment, directory and standard streams to the server of `python_server`, and ends with the
# process that the server forks. Only built-in modules: loading more would take longer than what the server saves.
import _socket
import array
import marshal
import os
import sys

if sys.argv[1] != "-m":
    os.execv("PYTHON", ["PYTHON", *sys.argv[1:]])
request = marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd()))  # noqa: PTH109
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
connection.connect("ADDRESS")
streams = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
connection.sendmsg([len(request).to_bytes(4, "little")], streams)
connection.sendall(request)
# Nothing arrives from a process that was killed.
os._exit((connection.recv(1) or b"\1")[0])
