"""Pages for people under ``/ui``: the service's jobs and results in a browser, drawn on the server, no scripts.

They show what the caller's key may read and change nothing; steering is by command line or REST.
"""
