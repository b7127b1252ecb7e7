"""A small double of Kubernetes' API: what Spark's driver asks for, in one namespace, with the rights of one role.

A program of its own on a host. Its argument is JSON: the address, the namespace, the pod of the driver, and the rules
of its role. It prints each request, and each pod that the driver creates, as a line of JSON. A line of its input is the
status of a pod.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]


class Api:
    """The objects, and the events of pods for those who watch them."""

    def __init__(self, given: Object) -> None:
        self.given = given
        self.objects: dict[tuple[str, str], Object] = {}
        self.events: list[tuple[str, Object]] = []
        self.changed = threading.Condition()
        self._numbers = itertools.count(1)
        self.put("ADDED", "pods", given["driver"])

    def allows(self, verb: str, namespace: str, resource: str) -> bool:
        """Return whether the role allows a request. It says so in the output."""
        rules = [each for each in self.given["rules"] if "" in each["apiGroups"] and resource in each["resources"]]
        allowed = namespace == self.given["namespace"] and any(verb in each["verbs"] for each in rules)
        say({"verb": verb, "resource": resource, "namespace": namespace, "allowed": allowed})
        return allowed

    def put(self, event: str, resource: str, item: Object) -> Object:
        """Add, replace or delete an object."""
        with self.changed:
            number = next(self._numbers)
            metadata = {"uid": f"uid-{number}", "namespace": self.given["namespace"], **item["metadata"]}
            item = {**item, "metadata": {**metadata, "resourceVersion": str(number)}}
            key = resource, metadata["name"]
            if event == "DELETED":
                del self.objects[key]
            else:
                self.objects[key] = item
            if resource == "pods":
                self.events.append((event, item))
            self.changed.notify_all()
        return item

    def events_after(self, number: int) -> list[tuple[str, Object]]:
        """Return the events after so many, as soon as there are some."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.events) > number)
            return self.events[number:]

    def select(self, resource: str, query: dict[str, list[str]]) -> list[Object]:
        """Return the objects that a request selects."""
        with self.changed:
            return [each for (kind, _), each in self.objects.items() if kind == resource and selects(query, each)]


def selects(query: dict[str, list[str]], item: Object) -> bool:
    """Return whether the labels or the name that a request selects are those of an object."""
    labels = [each.split("=", 1) for text in query.get("labelSelector", []) for each in text.split(",")]
    names = [text.removeprefix("metadata.name=") for text in query.get("fieldSelector", [])]
    metadata = item["metadata"]
    own = metadata.get("labels", {})
    # "spark-exec-inactive!=true" holds for each object here.
    chosen = all(own.get(name) == value for name, value in labels if not name.endswith("!"))
    return chosen and all(name == metadata["name"] for name in names)


class Handler(BaseHTTPRequestHandler):
    """A request, as /api/v1/namespaces/NAMESPACE/RESOURCE[/NAME]."""

    api: Api
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        words = parts.path.strip("/").split("/")
        if words[:3] != ["api", "v1", "namespaces"] or len(words) not in (5, 6):
            return self._answer(404, failure(404, f"not known here: {self.path}"))
        namespace, resource, name = words[3], words[4], words[5] if len(words) == 6 else None
        watches = query.get("watch") == ["true"]
        reads = "watch" if watches else "get" if name else "list"
        verb = {"GET": reads, "POST": "create", "DELETE": "delete" if name else "deletecollection"}[self.command]
        if not self.api.allows(verb, namespace, resource):
            return self._answer(403, failure(403, f"{resource} is forbidden: cannot {verb} in namespace {namespace}"))
        if watches:
            # To a client that asks for a web socket this says that there are none. It asks again for a plain answer.
            return self._answer(200, {}) if "Upgrade" in self.headers else self._watch(query)
        if verb == "create":
            created = self.api.put("ADDED", resource, {**body, "status": {"phase": "Pending"}})
            if resource == "pods":
                say({"pod": created})
            return self._answer(201, created)
        if name is None:
            found = self.api.select(resource, query)
            if verb == "deletecollection":
                for each in found:
                    self.api.put("DELETED", resource, each)
            version = {"resourceVersion": str(len(self.api.events))}
            kind = {"pods": "PodList", "configmaps": "ConfigMapList"}.get(resource, "List")
            return self._answer(200, {"apiVersion": "v1", "kind": kind, "metadata": version, "items": found})
        item = self.api.objects.get((resource, name))
        if item is None:
            return self._answer(404, failure(404, f"{resource} {name} not found"))
        if verb == "delete":
            self.api.put("DELETED", resource, item)
        return self._answer(200, item)

    do_GET = do_POST = do_DELETE = handle_request

    def _watch(self, query: dict[str, list[str]]) -> None:
        """Send all events, and then new ones until the client leaves."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        sent = 0
        while True:
            events = self.api.events_after(sent)
            sent += len(events)
            for kind, item in events:
                if selects(query, item):
                    try:
                        self.wfile.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
                    except OSError:
                        return

    def _answer(self, status: int, item: Object) -> None:
        content = json.dumps(item).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: `Api.allows` prints each request."""


def failure(status: int, message: str) -> Object:
    """Return the body of an error."""
    return {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": status, "message": message}


def say(line: Object) -> None:
    """Print a line of the output."""
    with _OUTPUT:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


_OUTPUT = threading.Lock()


def main(given: Object) -> None:
    """Serve until the end of the input."""
    Handler.api = api = Api(given)
    server = ThreadingHTTPServer((given["address"], given["port"]), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    for line in sys.stdin:
        status = json.loads(line)
        api.put("MODIFIED", "pods", {**api.objects["pods", status["name"]], "status": status["status"]})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
