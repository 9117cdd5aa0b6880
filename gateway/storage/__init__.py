"""Floor 3: the cellar. SQLAlchemy Core under the ports of ``domain/``, and ``memory.py``, which needs no disk."""
