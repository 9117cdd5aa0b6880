"""The console: pages made on the server from what the admin API answers, and small scripts that call it for changes."""
