"""The changes that a node has stored in the last minutes.

They are stored again if a server that lacks them replaces the database. ``kept_changes`` keeps the states,
``restore`` brings them back.
"""
