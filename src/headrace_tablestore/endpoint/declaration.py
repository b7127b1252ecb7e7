"""The endpoint for ``headrace serve --tablestore``."""

from __future__ import annotations

from headrace.http.endpoint import Endpoint

ENDPOINT = Endpoint(
    name="tablestore",
    system="Tablestore",
    root="For Tablestore, the directory of the instances: each is a sub-directory, created on first use.",
    clients="Clients of Tablestore connect to the endpoint http://HOST:PORT with an instance name of their choice and "
    "a configured access key.",
    configuration="headrace_tablestore.endpoint.configuration:Configuration",
    application="headrace_tablestore.endpoint.app:TablestoreApp",
    extra="headrace[serve]",
    packages=("google.protobuf",),
)
