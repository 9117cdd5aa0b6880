"""What a node has stored in the last minutes, to be brought back if a server without it replaces the database.

``kept_changes`` keeps the states, ``restore`` has a function for each kind.
"""
