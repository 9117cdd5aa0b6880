"""Floor 1: wire languages, sans-IO. Bytes in, values out (``read_*``); values in, bytes out (``write_*``)."""
