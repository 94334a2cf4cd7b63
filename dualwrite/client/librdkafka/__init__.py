"""Facts about librdkafka: its errors, its settings, and its calls that have no time limit."""
