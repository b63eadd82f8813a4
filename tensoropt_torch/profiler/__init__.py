"""Measurements of the machine that a job runs on."""
