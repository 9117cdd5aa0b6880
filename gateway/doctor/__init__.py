"""Finds what is wrong with a gateway on this machine, and changes nothing."""
