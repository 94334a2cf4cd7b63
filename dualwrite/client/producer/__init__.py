"""The native producer with the methods of confluent_kafka.Producer: blocking, and for asyncio."""
