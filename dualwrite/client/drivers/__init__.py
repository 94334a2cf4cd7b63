"""The two drivers of the engine: blocking, and for asyncio."""
