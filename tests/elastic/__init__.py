"""Jobs that go on with other numbers of processes."""
