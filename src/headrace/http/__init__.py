"""The base of all servers: limits of connections, requests and bytes; threads; start and stop.

From a connection to a response:

All servers (checkpoints, the endpoints, metrics, the web page) are `http.application.Application`s
on one base.

1. `http.listening.Acceptor` accepts connections one by one below the limit. `http.admission` decides which connection
   is closed for a new one: first anonymous connections, of the address that has the most; then the connection that has
   been idle longest.
2. `http.connections.ClientConnection` is uvicorn's protocol with timers, and with limits for headers, pipelining, and
   clients that do not read. An unreadable request gets `Application.refusal`, in the server's own form.
3. The application checks the credential before it reads a body, and calls `mark_authenticated`; after that the
   connection is not anonymous. `http.workload` counts its requests and bytes.
4. `http.serving.run` is a process that serves until a signal arrives. `ServingThread` serves inside a driver.

Requests that block run in `http.threads`: daemon threads, which do not delay the exit of a driver.
"""
