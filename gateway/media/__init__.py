"""Images, audio and the files that are kept of them."""
