"""Several replicas behind a router: who serves which request, and what a fleet costs."""
