"""The engine, the tables, and what all repositories share: cursors, team scope, feed, state transitions."""
