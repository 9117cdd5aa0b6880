"""Redaction of bodies before they are kept: secrets, cards, names of people's accounts, and media.

``redactor`` finds and numbers what is replaced in a text. ``body`` redacts a whole body: JSON value by value, an event
stream over the borders of its events (``event_texts``), other text as it is.
"""
