"""Storage: one repository per group of tables, the journal, media files and uploads of the data folder."""
