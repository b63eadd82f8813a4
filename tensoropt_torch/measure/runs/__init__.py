"""Short runs of operators and of plans on the running job."""
