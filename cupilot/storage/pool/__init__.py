"""The strategy pool: rows in the database, vectors in Chroma, search."""
