"""What people see. Draws; decides nothing about generation."""
