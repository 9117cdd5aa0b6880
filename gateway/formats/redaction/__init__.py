"""Redaction of bodies before they are kept: secrets, personal data, the operator's patterns and fields, and media.

``redactor`` finds and numbers what is replaced in a text, also behind ``escapes``; ``work`` limits the steps of that.
It searches for ``secret_shapes``, ``personal_shapes`` and ``own_patterns``. ``body`` redacts a whole body: JSON value
by value (``values``, ``media``, ``left_out``), an event stream over the borders of its events (``event_texts``,
``pieces``), other text as it is. ``first_pass`` spares most bodies all of this.
"""
