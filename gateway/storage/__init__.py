"""Storage: a repository per group of tables, the journal, and the data folder's media files and uploads."""
