"""Write numbers, tables and sentences as text."""
