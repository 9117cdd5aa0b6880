"""The admin API, ``/admin/v1``: what the ``gateway`` command and, later, the console talk to."""
