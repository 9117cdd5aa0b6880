"""Media and clients' files in a bucket of an S3-compatible store. Its client, obstore, is an extra."""
