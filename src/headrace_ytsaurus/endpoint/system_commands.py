"""Commands about the cluster itself."""

from __future__ import annotations

from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.parameters import Parameters

VERSION = "23.2.0-headrace"
"""The version that the endpoint reports; clients compare only the first numbers."""


def generate_timestamp(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return a timestamp later than all previous ones."""
    return Answer.structured({"timestamp": context.cluster.past_states.timestamp()})


def get_version(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the version of the endpoint."""
    return Answer.structured({"version": VERSION})


def get_supported_features(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the codecs that clients can name. Content is stored without them in any case."""
    return Answer.structured({"features": {"compression_codecs": ["none"], "erasure_codecs": ["none"]}})


def get_current_user(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the owner of the request's token."""
    return Answer.structured({"user": context.user})
