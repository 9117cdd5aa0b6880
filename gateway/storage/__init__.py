"""Storage: the database and its repositories; files in the data folder, a shared folder or a bucket; backups."""
