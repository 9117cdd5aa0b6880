"""Images and audio, and the files in which they are stored."""
