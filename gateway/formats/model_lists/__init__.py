"""Lists of models, one file for each format, and the properties that providers' lists give a model."""
