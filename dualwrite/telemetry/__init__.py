"""What a DualWrite does, for Prometheus and for OpenTelemetry. Each module needs the extra of its name."""
