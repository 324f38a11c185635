"""The listening side: aiohttp handlers, relay and the composition root."""
