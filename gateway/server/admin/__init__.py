"""The admin API, ``/admin/v1``, which the ``gateway`` command and the console use."""
