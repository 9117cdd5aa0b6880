"""The console: server-rendered pages with data of the admin API, and small scripts that call the API for changes."""
