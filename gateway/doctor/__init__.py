"""Diagnoses a gateway on this machine without changing anything of it."""
