"""Commands about the cluster itself."""

from __future__ import annotations

from headrace.endpoints.ytsaurus.commands import Answer, Context, Parameters, command
from headrace.endpoints.ytsaurus.tables.past_states import PastStates

VERSION = "23.2.0-headrace"
"""What the endpoint says it is; clients look at the first numbers only."""


@command("generate_timestamp")
def generate_timestamp(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return a timestamp that is later than all before."""
    return Answer.structured({"timestamp": context.part(PastStates).timestamp()})


@command("get_version")
def get_version(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return what the endpoint says it is."""
    return Answer.structured({"version": VERSION})


@command("get_supported_features")
def get_supported_features(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the codecs that clients may name; content is kept as it comes, whatever they name."""
    return Answer.structured({"features": {"compression_codecs": ["none"], "erasure_codecs": ["none"]}})


@command("get_current_user")
def get_current_user(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return whose token the request has."""
    return Answer.structured({"user": context.user})
