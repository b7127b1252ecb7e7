"""Workers: they read a tunnel in plain Python, share its channels, and deliver its changes at least once.

`headrace.ports.Tunnel.consume` creates a worker. Workers use only the port, so they run on every store with tunnels.
"""

from headrace.workers.worker import ChangeBatch, TunnelWorker

__all__ = ["ChangeBatch", "TunnelWorker"]
