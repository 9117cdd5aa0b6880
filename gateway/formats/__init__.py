"""Wire formats: bytes to values (``parse_*``) and values to bytes (``build_*``), without I/O."""
