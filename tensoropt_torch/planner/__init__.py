"""The search for strategies: settings, frontier, options."""
