"""Lists of models, one file for each format."""
