"""Metrics for Prometheus, traces for OpenTelemetry. Both packages are optional and imported when they are used."""
