"""Pages and pictures of what the planner found: one HTML file that needs nothing else, and
charts. It knows no plan and no model, only texts and figures."""
