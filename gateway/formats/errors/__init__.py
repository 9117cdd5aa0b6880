"""Errors: those that providers report, and error objects in each format of the clients."""
