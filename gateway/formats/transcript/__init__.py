"""Requests and answers as people read them, from bodies of any client format.

``messages`` reads what was asked, ``answers`` what was answered, in JSON or in a stream (``body_parts``). Both read
kept bodies, which are redacted and may be incomplete: what they do not know is left out. ``agreement`` and
``comparison`` compare two answers, ``verdict`` judges one, and ``training`` writes chats as lines for fine-tuning.
"""
