"""Tunnels in plain Python: workers that share a tunnel's channels and give its changes, at least once.

`headrace.ports.Tunnel.consume` makes one. It works on what every store's tunnels can do, and knows no store.
"""

from headrace.workers.worker import ChangeBatch, TunnelWorker

__all__ = ["ChangeBatch", "TunnelWorker"]
