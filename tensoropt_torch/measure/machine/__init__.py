"""The machine that a job runs on: its clock, hosts, devices and collectives."""
