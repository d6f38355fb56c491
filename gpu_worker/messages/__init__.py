"""Messages between processes of the worker, a module for each pair: frozen, tagged, validated by the receiver."""
