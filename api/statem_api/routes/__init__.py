"""The resources of the service, one module each."""
