"""A node among the others: registration, beats, the fence, deaths, the leader, notifications, signed requests."""
