"""Which models are captured, planned and run like one process: ``make models``."""
