"""The record of a node's started requests, on its disk or in the database, and the settlement after its death."""
