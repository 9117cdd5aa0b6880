"""The path of the admin API."""

PREFIX = "/admin/v1"
