"""The documentation at ``/help``, rendered from the Markdown files of the mkdocs site."""
