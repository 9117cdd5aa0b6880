"""Which channel serves a request, and how each channel is doing."""
