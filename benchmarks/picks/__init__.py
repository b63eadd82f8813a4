"""Whether what is picked fits, by the simulated peak of the rank that needs most."""
