"""Floor 4: the rooms a request walks through. Async, and without a word of HTTP's server side."""
