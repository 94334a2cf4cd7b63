"""The broker's settings that clients can change while it runs (KIP-226).

As in Kafka these are the defaults of topic settings (DynamicLogConfig) and some others (LogCleaner, SocketServer,
DynamicProducerStateManagerConfig). Every other setting needs a restart: also those that Kafka can change and that say
where the broker listens. Certificates need neither, because the broker notices new files.
"""

from dualwrite.broker.settings.topic_settings import DYNAMIC_DEFAULTS

DYNAMIC_OWN = frozenset(
    {
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "max.connections",
        "max.connections.per.ip",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
    }
)
"""Those that are no defaults of topic settings."""

DYNAMIC_SETTINGS = DYNAMIC_OWN | DYNAMIC_DEFAULTS.keys()
"""Every setting that can be changed while the broker runs."""
