"""Tunnels in plain Python: workers share the channels of a tunnel and return its changes, at least once.

`headrace.ports.Tunnel.consume` creates a worker. A worker works with the tunnels of all stores.
"""

from headrace.workers.worker import ChangeBatch, TunnelWorker

__all__ = ["ChangeBatch", "TunnelWorker"]
