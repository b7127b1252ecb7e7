"""The file cache: copies of files at paths derived from their MD5, so that clients upload each file once."""

from __future__ import annotations

from headrace_ytsaurus.endpoint.contents.file_commands import MD5
from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.cypress.basic_types import FILE
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.cypress.node import Node, ResolvedPath
from headrace_ytsaurus.endpoint.cypress.node_commands import chain_of
from headrace_ytsaurus.endpoint.cypress.node_types import node_type
from headrace_ytsaurus.endpoint.cypress.placing_commands import copy
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.paths import YPath
from headrace_ytsaurus.wire.yson import documents

_DIGITS = 2


def _place(parameters: Parameters) -> YPath:
    digest = parameters.text("md5")
    if len(digest) < _DIGITS:
        raise refused("Error reading parameter /md5", received=repr(digest), valid="an MD5 in hexadecimal digits")
    cache: YPath = parameters.path("cache_path")
    return cache.node.child(digest[-_DIGITS:], digest)


def _digest(cypress: Cypress, node: Node) -> str | None:
    kept = cypress.kept_attribute(node, MD5)
    return None if kept is None else str(documents.loads(kept))


def put_file_to_cache(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Copy a file into the cache, unless it has one with this MD5; return the path in the cache."""
    place, wanted = _place(parameters), parameters.text("md5")
    node = context.cypress.need(chain_of(context.transactions, parameters), parameters.path())
    digest = _digest(context.cypress, node)
    if node_type(node) is not FILE or digest is None:
        raise refused(f"{node.path} is not a file with an MD5", remedy="write it with compute_md5")
    if digest != wanted:
        raise refused("MD5 mismatch", received=wanted, valid=digest)
    paths = {"source_path": node.path, "destination_path": place.text}
    flags = {"recursive": True, "ignore_existing": True}
    transaction = {"transaction_id": node.transaction} if node.transaction is not None else {}
    copy(context, Parameters(paths | flags | transaction, "copy"), b"")
    return Answer.structured(place.text)


def get_file_from_cache(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the path of the file in the cache with an MD5; an empty text if there is none."""
    place = _place(parameters)
    try:
        found: ResolvedPath | None = context.cypress.look(chain_of(context.transactions, parameters), place)
    except YtError as error:
        if error.code != Code.RESOLVE:
            raise
        found = None
    cached = found is not None and not found.rest and _digest(context.cypress, found.node) == parameters.text("md5")
    return Answer.structured(place.text if cached else "")
