"""The manifest for Kubernetes, and the entrypoint of the image, with a double of Kubernetes' API.

The driver runs with the manifest's own command, settings, variables and job. Each pod that it creates is started by the
image's entrypoint on a host of its own.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import headrace
from tests.clusters import hosts
from tests.clusters.database import database
from tests.clusters.hosts import Host, wait_until
from tests.clusters.standalone import Site
from tests.documents import ROOT
from tests.startup import spark_archive

API_PORT = 8001
NAMESPACE, POD = "shop", "headrace-driver-5d8f7c-x2x4q"
PASSWORD = "password-of-the-database"
_API = Path(__file__).with_name("kubernetes_api.py")
_ENTRYPOINT = ROOT / "deploy" / "image" / "entrypoint.sh"
MANIFESTS = {each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy/kubernetes/stream.yaml").read_text())}
TEMPLATE = MANIFESTS["Deployment"]["spec"]["template"]
(CONTAINER,) = TEMPLATE["spec"]["containers"]


class Kubernetes(Site):
    """The API on a host, and a host for each pod. The pods are started as they are created."""

    def _start(self) -> None:
        # The name of the headless service leads to the pod.
        self.pod_host = self.add(MANIFESTS["Service"]["metadata"]["name"])
        # The image has tini, this machine may not.
        self.programs = self.network.directory / "programs"
        self.programs.mkdir()
        (self.programs / "tini").write_text('#!/bin/sh\nshift\nexec "$@"\n')
        (self.programs / "tini").chmod(0o755)
        api = self.add("kubernetes")
        status = {"phase": "Running", "podIP": self.pod_host.address}
        driver = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD, "uid": "uid-of-the-driver", **TEMPLATE["metadata"]},
            "spec": TEMPLATE["spec"],
            "status": {**status, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        given = {"address": api.address, "port": API_PORT, "namespace": NAMESPACE, "driver": driver}
        rules = {"rules": MANIFESTS["Role"]["rules"]}
        self._api = api.talk([self.python, "-I", _API, json.dumps({**given, **rules})])
        wait_until(lambda: api.listens(API_PORT), "the API listens")
        self.requests: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._api.stdout is not None
        for line in map(json.loads, self._api.stdout):
            if "pod" in line:
                self._start_pod(line["pod"])
            else:
                self.requests.append(line)

    def _start_pod(self, pod: dict[str, Any]) -> None:
        self.pods.append(pod)
        (container,) = pod["spec"]["containers"]
        host = self.add(f"executor-{len(self.pods)}")
        variables = values(container["env"], pod, host)
        # A volume of the pod.
        variables["SPARK_LOCAL_DIRS"] = str(host.home / "tmp")
        host.start(["bash", _ENTRYPOINT, *container["args"]], {**variables, "PATH": self.path(host)})
        status = {"phase": "Running", "podIP": host.address, "containerStatuses": [running(container)]}
        assert self._api.stdin is not None
        self._api.stdin.write(json.dumps({"name": pod["metadata"]["name"], "status": status}) + "\n")
        self._api.stdin.flush()

    def path(self, host: Host) -> str:
        """Return the variable PATH of the image."""
        return f"{self.python.parent}:{self.programs}:{host.environment()['PATH']}"

    def close(self) -> None:
        super().close()
        for pipe in (self._api.stdin, self._api.stdout):
            if pipe is not None:
                pipe.close()
        self._api.wait(60)
        self._reader.join(60)


def values(env: list[dict[str, Any]], pod: dict[str, Any], host: Host) -> dict[str, str]:
    """Return the variables of a container, as Kubernetes sets them."""
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": NAMESPACE,
        "status.podIP": host.address,
    }
    found = {each["name"]: each.get("value", "") for each in env}
    references = {each["name"]: each["valueFrom"] for each in env if "valueFrom" in each}
    return found | {
        name: fields[each["fieldRef"]["fieldPath"]] for name, each in references.items() if "fieldRef" in each
    }


def running(container: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a running container."""
    return {"name": container["name"], "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[Kubernetes]:
    """The API, without pods of executors."""
    missing = hosts.missing()
    if missing is not None:
        pytest.skip(missing)
    made = Kubernetes(tmp_path)
    yield made
    made.close()


def start_driver(kubernetes: Kubernetes, store: str) -> subprocess.Popen[bytes]:
    """Start the container of the manifest. Only addresses, and paths of volumes, are those of the test."""
    host = kubernetes.pod_host
    (host.own / "job.sql").write_text(MANIFESTS["ConfigMap"]["data"]["job.sql"])
    variables = values(CONTAINER["env"], {"metadata": {"name": POD}}, host)
    variables |= {"HEADRACE_STORE": store, "PGPASSWORD": PASSWORD, "PATH": kubernetes.path(host)}
    variables["SPARK_SUBMIT_OPTS"] = spark_archive.options()
    here = {
        "/job/job.sql": str(host.home / "job.sql"),
        "/work": str(host.home / "workspace"),
        "--master=k8s://https://kubernetes.default.svc": f"--master=k8s://http://kubernetes:{API_PORT}",
    }
    program, *arguments = [here.get(each, each) for each in CONTAINER["command"] + CONTAINER["args"]]
    assert program == "headrace"
    for name, value in variables.items():
        arguments = [each.replace(f"$({name})", value) for each in arguments]
    command = [kubernetes.python, "-m", "headrace.cli.main", *arguments]
    java = f"--conf=spark.executor.extraJavaOptions={spark_archive.options()} -Dseveral='two words'"
    return host.start(["sh", "-c", 'echo $$ > process; exec "$@"', "sh", *command, java], variables)


def test_the_manifest_runs_a_stream_in_pods_of_the_image(kubernetes: Kubernetes) -> None:
    with database(kubernetes.add("postgres"), PASSWORD) as shop, headrace.open(shop.own_url) as store:
        columns = {"id": "long", "customer": "string", "price": "double"}
        orders = store.create_table("orders", columns, "id", pre_images=True)
        totals = store.create_table("totals", {"customer": "string", "orders": "long", "spent": "double"}, "customer")
        orders.put([{"id": n, "customer": f"c{n % 2}", "price": n / 2} for n in range(100)])
        driver = start_driver(kubernetes, shop.url)

        def wait_for(expected: dict[str, int]) -> None:
            def reached() -> bool:
                assert driver.poll() is None, kubernetes.pod_host.log()[-6000:]
                return {row["customer"]: row["orders"] for row in totals.scan().read_all().to_pylist()} == expected

            wait_until(reached, f"the totals are {expected}")

        wait_for({"c0": 50, "c1": 50})
        orders.put([{"id": 100, "customer": "c0", "price": 1.0}])
        wait_for({"c0": 51, "c1": 50})
        kubernetes.pod_host.run(["sh", "-c", "kill -TERM $(cat process)"])
        driver.wait(60)

    assert len(kubernetes.pods) == 2
    for pod in kubernetes.pods:
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", POD, "uid-of-the-driver")
        # They need no rights.
        assert "serviceAccountName" not in pod["spec"]
        assert PASSWORD not in json.dumps(pod)
    assert {each["namespace"] for each in kubernetes.requests} == {NAMESPACE}
    assert [each for each in kubernetes.requests if not each["allowed"]] == []
