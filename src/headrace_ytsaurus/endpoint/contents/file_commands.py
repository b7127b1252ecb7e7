"""The commands that write and read files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from headrace_ytsaurus.endpoint.contents.uploads import appends
from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.cypress.basic_types import FILE
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.cypress.node_commands import chain_of
from headrace_ytsaurus.endpoint.cypress.node_types import node_type
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.storage.file_contents import PIECE_BYTES
from headrace_ytsaurus.endpoint.storage.tree import Facet
from headrace_ytsaurus.endpoint.transactions.locks import EXCLUSIVE, SHARED
from headrace_ytsaurus.wire.paths import YPath

MD5 = "md5"


def write_file(context: Context, parameters: Parameters, body: bytes) -> None:
    """Replace the content of a file, or append to it (the path's attribute ``append``)."""
    path: YPath = parameters.path()
    source = context.upload
    assert source is not None
    digest = _md5(source) if parameters.flag("compute_md5") else None
    append = appends(path)
    mode = SHARED if append else EXCLUSIVE
    with context.database.read():
        # Check before the bytes are copied that the file can be written.
        node = _file(context.cypress, chain_of(context.transactions, parameters), path)
        context.cypress.locks.check(node.chain, node.id, node.path, mode)
    upload, part = context.cluster.contents.upload(source)
    with upload, context.database.write():
        node = _file(context.cypress, chain_of(context.transactions, parameters), path)
        context.cypress.locks.need(node.chain, node.id, node.path, mode)
        upload.commit()
        write = context.cluster.contents.append if append else context.cluster.contents.replace
        write(node.chain, node.id, [part] if part.size else [])
        forget_digest(context.cypress, node)
        context.cypress.touch(context.now, node)
        if digest is not None and not append:
            context.cypress.keep_attribute(context.now, node, MD5, digest)


def read_file(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the content of a file from an offset."""
    with context.database.read():
        node = _file(context.cypress, chain_of(context.transactions, parameters), parameters.path())
        parts = context.cluster.contents.parts(node.chain, node.id)
        size = sum(part.size for part in parts)
        offset = min(parameters.number("offset", 0, least=0), size)
        length = min(parameters.number("length", size, least=0), size - offset)
        pieces = context.cluster.contents.read(parts, offset, length)
        version: dict[str, Any] = {"id": node.id, "revision": context.cypress.content_changed(node)}
        if length <= PIECE_BYTES:
            return Answer.raw(b"".join(pieces), **version)
    return Answer.streamed(pieces, length, **version)


def forget_digest(cypress: Cypress, node: Node) -> None:
    """Remove the digest of a file's previous content. The lock on the content is enough."""
    if cypress.kept_attribute(node, MD5) is not None:
        cypress.tree.put(node.chain[0], node.id, Facet.ATTRIBUTE, MD5, None)


def _file(cypress: Cypress, chain: tuple[str, ...], path: YPath) -> Node:
    node = cypress.need(chain, path.node)
    if node_type(node) is not FILE:
        raise refused(f'{node.path} is not a file, but of type "{node.type}"', valid="a path of a file")
    return node


def _md5(source: BinaryIO) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for piece in _pieces(source):
        digest.update(piece)
    source.seek(0)
    return digest.hexdigest()


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    while piece := source.read(PIECE_BYTES):
        yield piece
