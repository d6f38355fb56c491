"""Tables, repositories, state transitions and the strategy pool: the only code that knows SQLAlchemy and Chroma."""
