"""The REST service: the coordinator's verbs over HTTP, live events, identities."""
