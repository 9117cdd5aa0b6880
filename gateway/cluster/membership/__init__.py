"""Cluster membership: registration, beats, the fence, deaths, the leader, notifications, signed requests."""
