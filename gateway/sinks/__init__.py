"""Sinks: deliver the rows of requests, and kept bodies, to OpenTelemetry, Langfuse, webhooks and buckets.

There is no queue of its own: a sink has a cursor over the rows in the database. So nothing happens while a request
runs, and what is deleted from the database is not delivered.
"""
