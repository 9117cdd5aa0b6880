"""What operators see of the running gateway: its process, its metrics and its traces."""
