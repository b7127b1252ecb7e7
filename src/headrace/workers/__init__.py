"""Workers: they read a tunnel in plain Python, share its channels, and deliver its changes at least once.

`headrace.ports.Tunnel.consume` creates a worker. Workers use only the methods of a
tunnel in `interfaces`, so they run on every store with tunnels.

From a change to a worker:

1. A worker connects to the tunnel as a client and sends heartbeats. Each heartbeat is one transaction of the store. It
   records the client's report, removes channels from clients that have timed out, and distributes the open channels.
   To move a channel from a live client, the tunnel asks for it (CLOSING) and waits until the client releases it
   (CLOSE).
2. A worker has three kinds of threads. Readers prefetch. A consumer's thread receives one batch at a time; several such
   threads have batches of different channels. Only the keeper uses the client: it saves acknowledged positions, with
   increasing numbers, and sends heartbeats.
3. When a channel is completely acknowledged, its end is saved in the same way as a query commits it. Then its children
   open, and the next heartbeat assigns them. So the changes of a row stay in order over any number of workers.
4. A worker that could not reach the tunnel for its timeout delivers no more batches, because other workers may have
   its channels.
"""

from headrace.workers.worker import ChangeBatch, TunnelWorker

__all__ = ["ChangeBatch", "TunnelWorker"]
