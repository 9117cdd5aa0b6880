"""Redaction of bodies before they are kept: secrets, cards, names of people's accounts, and media.

``redactor`` finds and numbers what is replaced in a text, also behind ``escapes``; ``work`` limits the steps of that.
``body`` redacts a whole body: JSON value by value (``values``, ``media``), an event stream over the borders of its
events (``event_texts``, ``pieces``), other text as it is.
"""
