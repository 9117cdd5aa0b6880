"""The aiohttp application: the public API, the admin API and the console."""
