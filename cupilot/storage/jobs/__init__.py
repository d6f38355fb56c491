"""Jobs, problems and candidates in the database."""
