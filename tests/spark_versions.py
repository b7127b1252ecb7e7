"""Marks for tests of what old versions of Spark do not have: see `headrace.spark.versions`."""

from __future__ import annotations

import pytest

from headrace.spark.versions import Difference


def needs(feature: Difference) -> pytest.MarkDecorator:
    """Return a mark that skips a test with a version of Spark that does not have a feature."""
    return pytest.mark.skipif(not feature.present, reason=f"Spark before {feature.since}: {feature.feature}")
