"""The documentation at ``/help``, rendered from the Markdown files that mkdocs reads too."""
