"""The lifecycle as Prefect flows, each read from top to bottom. Their steps are ``tasks``."""
