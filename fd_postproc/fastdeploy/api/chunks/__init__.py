"""Chunk writing: stand-ins for the models of answers, and their JSON."""
