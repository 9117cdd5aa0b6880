"""What a node notes of the requests it has begun, on its disk or in the database, and who settles what it left."""
