"""The endpoint for ``headrace serve --ytsaurus``."""

from __future__ import annotations

from headrace.http.endpoint import Endpoint

ENDPOINT = Endpoint(
    name="ytsaurus",
    system="YTsaurus",
    root="For YTsaurus, the directory of the store.",
    clients="Clients of YTsaurus connect to the proxy http://HOST:PORT with a configured token.",
    configuration="headrace_ytsaurus.endpoint.configuration:Configuration",
    application="headrace_ytsaurus.endpoint.app:YtsaurusApp",
    settings={"cluster_name": ("primary", "The name of the cluster, for clients of YTsaurus.")},
    extra="headrace[serve]",
    packages=("yt.wrapper",),
)
