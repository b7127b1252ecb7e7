"""Commands about the cluster itself."""

from __future__ import annotations

from headrace.endpoints.ytsaurus.context import Answer, Context
from headrace.endpoints.ytsaurus.parameters import Parameters
from headrace.endpoints.ytsaurus.tables.past_states import PastStates

VERSION = "23.2.0-headrace"
"""What the endpoint says it is; clients look at the first numbers only."""


def generate_timestamp(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return a timestamp that is later than all before."""
    return Answer.structured({"timestamp": context.cluster.service(PastStates).timestamp()})


def get_version(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return what the endpoint says it is."""
    return Answer.structured({"version": VERSION})


def get_supported_features(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the codecs that clients may name; content is kept as it comes, whatever they name."""
    return Answer.structured({"features": {"compression_codecs": ["none"], "erasure_codecs": ["none"]}})


def get_current_user(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return whose token the request has."""
    return Answer.structured({"user": context.user})
