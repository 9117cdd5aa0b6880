"""The ``gateway`` command."""
