"""headrace beside the systems that users would take instead: the same rows and the same query, on the same cores.

Each peer is a benchmark named ``peers_…``. Its programs come from PyPI and Maven Central, in the versions of
`bench.peers.releases` and the checksums of ``locks/``, into a directory of the user's cache.
"""
