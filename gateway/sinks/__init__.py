"""Sinks: deliver the rows of requests, and kept bodies, to OpenTelemetry, Langfuse, webhooks and buckets.

Sinks have no queue: each has a cursor over the rows in the database. Running requests therefore do no work for sinks,
and rows that are deleted from the database are not delivered.
"""
