"""What is known of librdkafka: its errors, its settings, and the calls that it does not bound in time."""
