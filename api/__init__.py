"""The REST service under ``/v1``: routes, authentication, errors. No SQL, no user code, no model, no device."""
