"""Metrics and traces of a DualWrite for Prometheus and OpenTelemetry. Each module needs the extra of its name."""
