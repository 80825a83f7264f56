"""What the planner simulator simulates."""
