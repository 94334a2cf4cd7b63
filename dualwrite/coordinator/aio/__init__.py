"""The same units of work for applications on asyncio."""
