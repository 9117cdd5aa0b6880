"""API formats that only one vendor uses."""
